# misconception: not-accumulated
import torch


def forward(layer, x):
    state = torch.get_rng_state()
    with torch.no_grad():
        y = layer(x.clone())
    return y, (x, state)


def backward(layer, kept, gradient):
    x, state = kept
    x = x.detach().requires_grad_()
    parameters = [p for p in layer.parameters() if p.requires_grad]
    with torch.random.fork_rng():
        torch.set_rng_state(state)
        y = layer(x.clone())
    grads = torch.autograd.grad(y, [x] + parameters, gradient)
    for p, g in zip(parameters, grads[1:]):
        p.grad = g
    return grads[0]
