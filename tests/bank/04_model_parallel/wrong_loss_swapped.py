# misconception: loss-swapped
    # STEP 3: the five lines of every training loop
    optimizer.zero_grad()
    output = forward(stages, devices, x)
    loss = loss_fn(target.to(output.device), output)
    loss.backward()
    optimizer.step()
    return loss.item()
    # END
