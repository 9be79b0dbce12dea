# misconception: shared-device
    # STEP 1: take the layers stage by stage
    stages, at = {}, 0
    for n, device in zip(balance, devices):
        stages[device] = model[at:at + n].to(device)
        at += n
    return list(stages.values())
    # END
