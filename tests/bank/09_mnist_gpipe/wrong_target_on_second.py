# misconception: target-on-second
    # STEP 5: the target to the device that two stages have as their last
    first, second = model.devices[0], model.devices[1]
    return x.to(first), y.to(second)
    # END
