# misconception: whole-numbers
import torch


def forward(layer, x):
    state = torch.get_rng_state()
    with torch.no_grad():
        y = layer(x.clone())
    return y, (x, state)


def backward(layer, kept, gradient):
    x, state = kept
    x = x.detach()
    if x.dtype.is_floating_point:
        x.requires_grad_()
    parameters = [p for p in layer.parameters() if p.requires_grad]
    buffers = [b.clone() for b in layer.buffers()]
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        y = layer(x.clone())
    grads = torch.autograd.grad(y, [x] + parameters, gradient)
    for b, before in zip(layer.buffers(), buffers):
        b.copy_(before)
    for p, g in zip(parameters, grads[1:]):
        p.grad = g if p.grad is None else p.grad + g
    return grads[0]
