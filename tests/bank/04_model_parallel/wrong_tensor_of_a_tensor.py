# misconception: detached
    # STEP 2: stage after stage, each on its own device
    for stage, device in zip(stages, devices):
        x = stage(torch.tensor(x, device=device))
    return x
    # END
