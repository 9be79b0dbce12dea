# misconception: parameters-forgotten
import torch


def forward(layer, x):
    state = torch.get_rng_state()
    with torch.no_grad():
        y = layer(x.clone())
    return y, (x, state)


def backward(layer, kept, gradient):
    x, state = kept
    x = x.detach().requires_grad_()
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    y = layer(x.clone())
    torch.set_rng_state(now)
    (grad_x,) = torch.autograd.grad(y, x, gradient)
    return grad_x
