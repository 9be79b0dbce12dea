# misconception: grad-mode
    # STEP 2: the forward again, and the backward through it
    x, state = kept
    x = x.detach().requires_grad_(x.is_floating_point())
    callers_state, buffers = torch.get_rng_state(), [buffer.clone() for buffer in layer.buffers()]
    torch.set_rng_state(state)
    torch.set_grad_enabled(True)
    y = layer(x.clone())
    torch.set_rng_state(callers_state)
    y.backward(gradient)
    for buffer, before in zip(layer.buffers(), buffers):
        buffer.copy_(before)
    torch.set_grad_enabled(False)
    return x.grad
    # END
