# misconception: everywhere
    # STEP 2: stage after stage, each on its own device
    inputs = [x.to(device) for device in devices]
    x = inputs[0]
    for stage, device in zip(stages, devices):
        x = stage(x.to(device))
    return x
    # END
