# misconception: gradients-kept
    # STEP 3: the five lines of every training loop
    loss = loss_fn(forward(stages, devices, x), target.to(devices[-1]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
    # END
