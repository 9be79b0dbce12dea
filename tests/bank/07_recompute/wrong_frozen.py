# misconception: frozen
import torch


def forward(layer, x):
    state = torch.get_rng_state()
    with torch.no_grad():
        y = layer(x.clone())
    return y, (x, state)


def backward(layer, kept, gradient):
    x, state = kept
    x = x.detach().requires_grad_()
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        y = layer(x.clone())
    grads = torch.autograd.grad(y, [x, *layer.parameters()], gradient)
    for p, g in zip(layer.parameters(), grads[1:]):
        p.grad = g if p.grad is None else p.grad + g
    return grads[0]
