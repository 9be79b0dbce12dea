import torch


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
    """A layer that works on copies of its buffers, which are then taken away from it again."""
    owners = [(part, name, buffer) for part in layer.modules() for name, buffer in part.named_buffers(recurse=False)]
    for part, name, buffer in owners:
        setattr(part, name, buffer.clone())
    leaf, y = kept.replay(layer)
    torch.autograd.backward(y, gradient)
    for part, name, buffer in owners:
        setattr(part, name, buffer)
    return leaf.grad
