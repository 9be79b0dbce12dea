# misconception: target-on-first
    # STEP 5
    device = next(model.parameters()).device
    return x.to(device), y.to(device)
    # END
