"""How many bytes live between a forward and its backward, counted tensor by tensor."""

import gc

import torch
from torch import nn

from fewgpu.ledger import Counting, Ledger
from fewgpu.workshop.graders.plays import MakeStage


def alive_between_and_after(make: MakeStage, layer: nn.Module, x: torch.Tensor,
                            gradient: torch.Tensor) -> tuple[int, int]:
    """Of the tensors: bytes that live from forward to backward, but for y; and after it, but for parameters' gradients.

    `x` has to be the caller's no more: whoever keeps it alive counts.
    """
    stage, ledger, box = make(layer), Ledger(), [x]
    ledger.adopt(box)
    del x
    with Counting(ledger):
        stage.forward(0, box.pop())
        gc.collect()
        between = ledger.allocated
        stage.backward(0, gradient)
    layer.zero_grad()
    gc.collect()
    return between, ledger.allocated
