# misconception: output-home
    # STEP 2: stage after stage, each on its own device
    x = x.to(devices[0])
    for j, stage in enumerate(stages):
        x = stage(x).to(devices[(j + 1) % len(devices)])
    return x
    # END
