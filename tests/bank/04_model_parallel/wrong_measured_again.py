# misconception: measured-again
    # STEP 3: the five lines of every training loop
    optimizer.zero_grad()
    loss_fn(forward(stages, devices, x), target.to(devices[-1])).backward()
    optimizer.step()
    return loss_fn(forward(stages, devices, x), target.to(devices[-1])).item()
    # END
