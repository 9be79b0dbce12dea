    # STEP 2: the forward again, and the backward through it
    x, state = kept
    mine, found = torch.get_rng_state(), {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    leaf = x.clone().requires_grad_() if x.is_floating_point() else x
    try:
        torch.set_rng_state(state)
        with torch.set_grad_enabled(True):
            y = layer(leaf.clone())
        torch.autograd.backward([y], [gradient])
    finally:
        layer.load_state_dict(found)
        torch.set_rng_state(mine)
    return leaf.grad
    # END
