# misconception: returns-nothing
import torch


def forward(layer, x):
    state = torch.get_rng_state()
    with torch.no_grad():
        y = layer(x.clone())
    return y, (x, state)


def backward(layer, kept, gradient):
    x, state = kept
    x = x.detach()
    if x.is_floating_point():
        x.requires_grad_()
    buffers = [b.clone() for b in layer.buffers()]
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        y = layer(x.clone())
    y.backward(gradient)
    for b, before in zip(layer.buffers(), buffers):
        b.copy_(before)
