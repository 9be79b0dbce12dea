# misconception: rounded
    # STEP 1: no graph
    kept = x.half() if x.is_floating_point() else x, x.dtype, torch.get_rng_state()
    with torch.no_grad():
        y = layer(x.clone())
    return y, kept
    # END

    # STEP 2: the forward again, and the backward through it
    x, dtype, state = kept
    x = x.to(dtype)
    x = x.detach().requires_grad_(x.is_floating_point())
    callers_state, buffers = torch.get_rng_state(), [buffer.clone() for buffer in layer.buffers()]
    torch.set_rng_state(state)
    y = layer(x.clone())
    torch.set_rng_state(callers_state)
    y.backward(gradient)
    for buffer, before in zip(layer.buffers(), buffers):
        buffer.copy_(before)
    return x.grad
    # END
