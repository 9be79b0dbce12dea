# misconception: not-moved
    # STEP 5
    return x.to(model.devices[0]), y
    # END
