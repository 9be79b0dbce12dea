# misconception: grad-mode
    # STEP 1: no graph
    kept = x, torch.get_rng_state()
    torch.set_grad_enabled(False)
    y = layer(x.clone())
    return y, kept
    # END
