    # STEP 1: take the layers stage by stage
    stages, at = [], 0
    for n, device in zip(balance, devices):
        stages.append(model[at:at + n].to(device=device, non_blocking=True))
        at += n
    return stages
    # END

    # STEP 2: stage after stage, each on its own device
    for stage, device in zip(stages, devices):
        x = stage(x.to(device=device))
    return x
    # END

    # STEP 3: the five lines of every training loop
    loss = loss_fn(forward(stages, devices, x), target.to(device=devices[-1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
    # END
