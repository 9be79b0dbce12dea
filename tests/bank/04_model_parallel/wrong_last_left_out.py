# misconception: stage-left-out
    # STEP 2: stage after stage, each on its own device
    for stage, device in zip(stages[:-1], devices):
        x = stage(x.to(device))
    return x.to(devices[-1])
    # END
