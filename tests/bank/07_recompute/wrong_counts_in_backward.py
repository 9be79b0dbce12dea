# misconception: counted-late
import torch


def forward(layer, x):
    state = torch.get_rng_state()
    before = {name: b.clone() for name, b in layer.named_buffers()}
    with torch.no_grad():
        y = layer(x.clone())
        for name, b in layer.named_buffers():
            b.copy_(before[name])
    return y, (x, state)


def backward(layer, kept, gradient):
    x, state = kept
    x = x.detach()
    if x.is_floating_point():
        x.requires_grad_()
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        y = layer(x.clone())
    y.backward(gradient)
    return x.grad
