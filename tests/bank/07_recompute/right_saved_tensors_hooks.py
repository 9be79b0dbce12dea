import contextlib
import copy

import torch


def nothing(tensor):
    return None


def forward(layer, x):
    """The graph is built, but saves no tensor; and it goes at once."""
    state = torch.get_rng_state()
    with torch.autograd.graph.saved_tensors_hooks(nothing, nothing):
        y = layer(x.clone()).detach()
    return y, {'x': x, 'state': state}


@contextlib.contextmanager
def as_it_was(layer, state):
    now = torch.get_rng_state()
    statistics = copy.deepcopy(dict(layer.named_buffers()))
    torch.set_rng_state(state)
    yield
    torch.set_rng_state(now)
    with torch.no_grad():
        for name, buffer in layer.named_buffers():
            buffer.copy_(statistics[name])


def backward(layer, kept, gradient):
    x = kept['x']
    with as_it_was(layer, kept['state']):
        if x.is_floating_point():
            leaf = torch.empty_like(x).copy_(x).requires_grad_()
            start = leaf + 0
        else:
            leaf, start = None, x
        (layer(start) * gradient).sum().backward()
    return None if leaf is None else leaf.grad
