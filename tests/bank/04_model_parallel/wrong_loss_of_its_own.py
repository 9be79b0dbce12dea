# misconception: own-loss
    # STEP 3: the five lines of every training loop
    optimizer.zero_grad()
    output = forward(stages, devices, x)
    loss = nn.functional.mse_loss(output, target.to(output.device))
    loss.backward()
    optimizer.step()
    return loss.item()
    # END
