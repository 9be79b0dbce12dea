# misconception: layers-changed
    # STEP 1: take the layers stage by stage
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stages.append(model[at:at + n].to(device).float())
        at += n
    return stages
    # END
