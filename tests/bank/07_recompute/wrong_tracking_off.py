# misconception: other-buffers
    # STEP 2: the forward again, and the backward through it
    x, state = kept
    x = x.detach().requires_grad_(x.is_floating_point())
    callers_state = torch.get_rng_state()
    norms = [part for part in layer.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.track_running_stats = False
    torch.set_rng_state(state)
    y = layer(x.clone())
    torch.set_rng_state(callers_state)
    y.backward(gradient)
    for norm in norms:
        norm.track_running_stats = True
    return x.grad
    # END
