import itertools

import torch


numbers = itertools.count()
stashes = {}


def forward(layer, x):
    number = next(numbers)
    stashes[number] = x.numpy().copy(), torch.get_rng_state()
    with torch.no_grad():
        y = layer(x)
    return y, number


def backward(layer, kept, gradient):
    values, state = stashes.pop(kept)
    leaf = torch.from_numpy(values)
    if leaf.is_floating_point():
        leaf.requires_grad = True
    buffers = list(layer.buffers())
    saved = list(map(torch.clone, buffers))
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        y = layer(leaf.clone())
        torch.autograd.backward([y], [gradient])
    for buffer, value in zip(buffers, saved):
        buffer.data = value
    return leaf.grad
