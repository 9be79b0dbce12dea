# misconception: returns-nothing
    # STEP 5
    x.to(model.devices[0])
    y.to(model.devices[-1])
    # END
