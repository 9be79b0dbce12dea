# misconception: not-callable
    # STEP 1: take the layers stage by stage
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stages.append(nn.ModuleList(model[at:at + n]).to(device))
        at += n
    return stages
    # END
