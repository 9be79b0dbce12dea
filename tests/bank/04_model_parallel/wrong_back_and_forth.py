# misconception: back-and-forth
    # STEP 2: stage after stage, each on its own device
    for stage, device in zip(stages, devices):
        x = stage(x.to(device)).to(devices[0])
    return x.to(devices[-1])
    # END
