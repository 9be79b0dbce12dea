import torch
from torch import nn


class Memory:
    """What one micro-batch leaves behind."""

    def __init__(self, x):
        self.x, self.generator = x.clone(), torch.default_generator.get_state()

    def replay(self, layer):
        leaf = self.x.requires_grad_() if self.x.is_floating_point() else self.x
        inside = leaf * 1 if leaf.requires_grad else leaf
        found = torch.default_generator.get_state()
        try:
            torch.default_generator.set_state(self.generator)
            return leaf, layer(inside)
        finally:
            torch.default_generator.set_state(found)


@torch.no_grad()
def forward(layer, x):
    memory = Memory(x)
    return layer(x), memory


def backward(layer, kept, gradient):
    norms = [part for part in layer.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training]
    before = [part.track_running_stats for part in norms]
    for part in norms:
        part.track_running_stats = False
    try:
        leaf, y = kept.replay(layer)
    finally:
        for part, tracked in zip(norms, before):
            part.track_running_stats = tracked
    torch.autograd.backward(y, gradient)
    return leaf.grad
