# misconception: not-callable
    # STEP 1: take the layers stage by stage
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stages.append([layer.to(device) for layer in model[at:at + n]])
        at += n
    return stages
    # END
