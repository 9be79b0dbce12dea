# misconception: target-on-first
    # STEP 5
    return x.to(model.devices[0]), y.to(model.devices[0])
    # END
