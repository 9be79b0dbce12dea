# misconception: loss-with-graph
    # STEP 3: the five lines of every training loop
    optimizer.zero_grad()
    output = forward(stages, devices, x)
    loss = loss_fn(output, target.to(output.device))
    loss.backward()
    optimizer.step()
    return loss
    # END
