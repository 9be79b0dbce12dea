# misconception: swapped
    # STEP 5
    return x.to(model.devices[-1]), y.to(model.devices[0])
    # END
