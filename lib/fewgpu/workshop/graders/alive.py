"""How many bytes live between a forward and its backward, counted tensor by tensor."""

import gc

import torch
from torch import nn

from fewgpu.ledger import Counting, Ledger
from fewgpu.workshop.graders.replay import Pair


def alive_between_and_after(functions: Pair, layer: nn.Module, x: torch.Tensor,
                            gradient: torch.Tensor) -> tuple[int, int]:
    """Of the tensors: bytes that live from forward to backward, but for y; and after it, but for parameters' gradients.

    `x` has to be the caller's no more: whoever keeps it alive counts.
    """
    forward, backward = functions
    ledger, box = Ledger(), [x]
    ledger.adopt(box)
    del x
    with Counting(ledger):
        y, kept = forward(layer, box.pop())
        del y
        gc.collect()
        between = ledger.allocated
        backward(layer, kept, gradient)
        del kept
    layer.zero_grad()
    gc.collect()
    return between, ledger.allocated
