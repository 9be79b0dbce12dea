# misconception: buffers-turned-back
    # STEP 1: no graph
    kept = x, torch.get_rng_state(), [buffer.clone() for buffer in layer.buffers()]
    with torch.no_grad():
        y = layer(x.clone())
    return y, kept
    # END

    # STEP 2: the forward again, and the backward through it
    x, state, buffers = kept
    x = x.detach().requires_grad_(x.is_floating_point())
    callers_state = torch.get_rng_state()
    torch.set_rng_state(state)
    for buffer, before in zip(layer.buffers(), buffers):
        buffer.copy_(before)
    y = layer(x.clone())
    torch.set_rng_state(callers_state)
    y.backward(gradient)
    return x.grad
    # END
