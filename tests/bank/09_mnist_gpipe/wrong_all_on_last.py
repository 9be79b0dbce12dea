# misconception: input-on-last
    # STEP 5
    x, y = x.to(model.devices[-1]), y.to(model.devices[-1])
    return x, y
    # END
