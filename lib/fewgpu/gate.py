"""Where a micro-batch enters the graph of a stage, and where it leaves it."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

GradientEdge = torch.autograd.graph.GradientEdge


class Gate:
    """Where a micro-batch enters the graph of a stage, and where the gradients come out again.

    Received tensors cannot be leaves of the graph: a first layer may work in place.
    """

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._where: list[int] = []
        self._leaves = 0
        self.anchor: torch.Tensor | None = None   #: a leaf that all paths to the input lead to
        self.gradients: tuple[torch.Tensor | None, ...] = ()

    def enter(self, inputs: Any) -> Any:
        """The same nesting of tensors; those that need a gradient belong to a new graph."""
        leaves, spec = pytree.tree_flatten(inputs)
        self._leaves = len(leaves)
        self._where = [k for k, leaf in enumerate(leaves)
                       if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not self._where:
            return inputs
        self._tensors = [leaves[k].detach() for k in self._where]
        self.anchor = torch.empty(0, requires_grad=True, device='cpu')
        for k, tensor in zip(self._where, _Enter.apply(self.anchor, self)):
            leaves[k] = tensor
        return pytree.tree_unflatten(leaves, spec)

    def take_gradients(self) -> list[torch.Tensor | None]:
        """One gradient a leaf of the input (None where there is none), once."""
        gradients: list[torch.Tensor | None] = [None] * self._leaves
        for k, gradient in zip(self._where, self.gradients):
            gradients[k] = gradient
        self.gradients = ()
        return gradients

    def take_tensors(self) -> list[torch.Tensor]:
        tensors, self._tensors = self._tensors, []
        return tensors


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor: torch.Tensor, gate: Gate) -> tuple[torch.Tensor, ...]:
        ctx.gate = gate
        ctx.set_materialize_grads(False)   # None where no gradient came
        return tuple(gate.take_tensors())

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor | None) -> tuple[None, None]:
        ctx.gate.gradients = gradients
        return None, None


def flags(outputs: Any) -> list[bool]:
    """Whether a gradient comes back, for every leaf of the output."""
    return [isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for leaf in pytree.tree_leaves(outputs)]


def edges(outputs: Any) -> list[GradientEdge | None]:
    """Where the gradient of every leaf of the output enters the graph. (The outputs themselves are
    not kept: once they are sent, their memory goes.)"""
    return [torch.autograd.graph.get_gradient_edge(leaf)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad else None
            for leaf in pytree.tree_leaves(outputs)]
