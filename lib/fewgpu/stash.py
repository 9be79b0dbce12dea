"""What a micro-batch leaves behind in a stage, between its forward and its backward."""

from dataclasses import dataclass
from typing import Any

import torch

from fewgpu.gate import Gate, GradientEdge
from fewgpu.recompute import Buffers
from fewgpu.split_backward import Roots, SplitBackward
from fewgpu.weights import Weights


@dataclass
class Stash:
    """What a forward left behind for its backward: the input to run again, or the graph."""

    weights: Weights
    version: int                                     # of the weights, in the forward
    needs_gradient: list[bool]                       # of every leaf of the output
    gate: Gate | None = None
    edges: list[GradientEdge | None] | None = None   # of the outputs (None: no gradient)
    inputs: Any = None
    buffers: Buffers | None = None
    split: SplitBackward | None = None               # between the halves of the backward

    def roots(self, gradients: list[torch.Tensor | None]) -> Roots:
        """Where the backward starts, from one gradient a leaf of the output."""
        return [(edge, gradient) for edge, gradient in zip(self.edges, gradients)
                if edge is not None and gradient is not None]
