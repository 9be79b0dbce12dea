# misconception: buffers-turned-back
import torch


def forward(layer, x):
    state = torch.get_rng_state()
    before = [b.clone() for b in layer.buffers()]
    with torch.no_grad():
        y = layer(x.clone())
    return y, (x, state, before)


def backward(layer, kept, gradient):
    x, state, buffers = kept
    x = x.detach()
    if x.is_floating_point():
        x.requires_grad_()
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        y = layer(x.clone())
    y.backward(gradient)
    for b, before in zip(layer.buffers(), buffers):
        b.copy_(before)
    return x.grad
