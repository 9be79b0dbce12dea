# misconception: past-the-stages
    # STEP 4: forwards, then the loss and the backwards
    x = torch.cat(micro_batches)
    for stage in stages:
        x = stage.module(x)
    loss = loss_fn(x, torch.cat(targets))
    loss.backward()
    return loss.item()
    # END
