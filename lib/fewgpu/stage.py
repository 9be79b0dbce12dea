"""One stage's work on one micro-batch: forward, recompute, backward.

A `Stage` lasts as long as the pipeline: layers, a device. A `StageStep` is what one mini-batch
leaves behind in it, and goes with it, so nothing leaks from one step into the next, and two
forwards may come before a backward.

What crosses the boundary between two stages is a tensor without a graph, whose `requires_grad` says
whether a gradient comes back. Each stage has a graph of its own for every micro-batch:

    received ──► Gate ──► layers ──► outputs ──► sent, detached
                  │         │           │
                  ▼         ▼           └─ gradient edges are kept, the outputs themselves are not
             gradients   gradients
             to send     gather in the shadows of the parameters

A shadow is a leaf that shares its parameter's storage. At the end of a backward the pipeline hands
the gradients of the shadows to the caller's graph, once for all micro-batches.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.microbatch import check_leaves
from fewgpu.recompute import Buffers, Swap, dropping_graph, parameter_slots, recomputing
from fewgpu.rng import Stream


@dataclass
class Stage:
    """Layers on a device. `index` counts stages from 0."""

    index: int
    module: nn.Module
    device: Device

    def begin(self, context: Context, micro_batches: int) -> 'StageStep':
        """The stage's part of one step."""
        for layer in self.module.modules():
            if isinstance(layer, DeferredBatchNorm):
                layer.begin(micro_batches)
        if ledger := self.device.ledger:
            ledger.adopt([*self.module.parameters(), *self.module.buffers()], parameters=True)
        return StageStep(self, context)


@dataclass
class Stash:
    """What a forward left behind for its backward: the input to run again, or the graph."""

    needs_gradient: list[bool]                  # of every leaf of the output
    gate: 'Gate | None' = None
    edges: list[Any] | None = None              # gradient edges of the outputs (None: no gradient)
    inputs: Any = None
    buffers: Buffers | None = None


class Gate:
    """Where a micro-batch enters the graph of a stage, and where the gradients come out again.

    Received tensors cannot be leaves of the graph: a first layer may work in place.
    """

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._where: list[int] = []
        self._leaves = 0
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
        entered = _Enter.apply(torch.empty(0, requires_grad=True, device='cpu'), self)
        for k, tensor in zip(self._where, entered):
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
    def forward(ctx, phony: torch.Tensor, gate: Gate) -> tuple[torch.Tensor, ...]:
        ctx.gate = gate
        ctx.set_materialize_grads(False)   # None where no gradient came
        return tuple(gate.take_tensors())

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor | None) -> tuple[None, None]:
        ctx.gate.gradients = gradients
        return None, None


@dataclass
class StageStep:
    """One stage during one step. Its methods run in the worker of the stage's device."""

    stage: Stage
    context: Context
    shadows: dict[nn.Parameter, torch.Tensor] = field(default_factory=dict)
    _stashes: dict[int, Stash] = field(default_factory=dict)
    _overwritten: dict = field(default_factory=dict)   # see Buffers
    _versions: list[int] = field(default_factory=list)   # of the parameters, after the latest run

    def __post_init__(self) -> None:
        slots = parameter_slots(self.stage.module) if self.context.gradients else []
        for _, _, parameter in slots:
            if parameter not in self.shadows:
                self.shadows[parameter] = parameter.detach().requires_grad_(parameter.requires_grad)
        self._swap = Swap([(container, key) for container, key, _ in slots])
        self._values = [self.shadows[parameter] for _, _, parameter in slots]
        # A recompute does as the forward did, although the caller may have called eval() since.
        # (TorchScript keeps its modes elsewhere.)
        parts = [vars(part) for part in self.stage.module.modules() if 'training' in vars(part)]
        self._modes = Swap([(part, 'training') for part in parts])
        self._training = [part['training'] for part in parts]
        self._buffers = {_storage(buffer) for buffer in self.stage.module.buffers()}

    def forward(self, i: int, inputs: Any, keep: str) -> Any:
        """The outputs for micro-batch `i`, without a graph.

        `keep` is what stays behind for the backward: 'graph', 'input' (then `recompute` comes
        before `backward`) or 'nothing'.
        """
        if keep == 'input' and not self._needs_gradient(inputs):
            keep = 'graph'   # which will be empty
        awaited = keep == 'input' or any(stash.buffers for stash in self._stashes.values())
        buffers = Buffers(self.stage.module, self._overwritten) if awaited else None
        if keep == 'input':
            with dropping_graph():   # on a copy: a first layer may work in place
                outputs, _ = self._run(i, _copied(inputs))
            self._stashes[i] = Stash(_flags(outputs), inputs=inputs, buffers=buffers)
        else:
            outputs, gate = self._run(i, inputs)
            if keep == 'graph':
                self._stashes[i] = Stash(_flags(outputs), gate, _edges(outputs))
        if awaited:
            buffers.forget_unchanged()
        check_leaves(outputs, 'output')
        self._hand_on_new_data()
        return pytree.tree_map_only(torch.Tensor, self._leaving, outputs)

    def recompute(self, i: int) -> None:
        """Run the forward of micro-batch `i` again, this time with its graph."""
        stash = self._stashes[i]
        if stash.edges is not None:   # nothing needs a gradient, or the graph was retained
            return
        if self._versions != self._versions_now():
            raise RuntimeError('a parameter was changed between the forward and the backward (by '
                               'an optimizer step, say): the forward cannot be recomputed as it was')
        with recomputing(), self._modes.to(self._training), stash.buffers.restored():
            outputs, stash.gate = self._run(i, stash.inputs)
        if _flags(outputs) != stash.needs_gradient:
            raise RuntimeError('the recomputed forward does not return what the first one '
                               'returned: a layer must do the same both times')
        stash.edges = _edges(outputs)
        stash.inputs = stash.buffers = None

    def backward(self, i: int, gradients: list[torch.Tensor | None], *,
                 retain_graph: bool = False) -> list[torch.Tensor | None]:
        """From one gradient a leaf of the output to one a leaf of the input.

        Gradients of parameters add up in `shadows`.
        """
        stash = self._stashes[i] if retain_graph else self._stashes.pop(i)
        pairs = [(edge, gradient) for edge, gradient in zip(stash.edges, gradients)
                 if edge is not None and gradient is not None]
        if pairs:
            torch.autograd.backward(*map(list, zip(*pairs)), retain_graph=retain_graph)
        return stash.gate.take_gradients()

    def take_gradients(self) -> dict[nn.Parameter, torch.Tensor | None]:
        """What has gathered for each parameter since the last time."""
        gradients = {parameter: shadow.grad for parameter, shadow in self.shadows.items()}
        for shadow in self.shadows.values():
            shadow.grad = None
        return gradients

    def _run(self, i: int, inputs: Any) -> tuple[Any, Gate]:
        gate = Gate()
        stream = Stream(self.context.seed, self.stage.index, i, self.stage.device.torch)
        with self._swap.to(self._values), self.context.casting(), stream:
            outputs = self.stage.module(gate.enter(inputs))
        self._versions = self._versions_now()
        return outputs, gate

    def _versions_now(self) -> list[int]:
        return [value._version for value in self._values]

    def _hand_on_new_data(self) -> None:
        """A layer that constrains its weights may have said weight.data = ... to a shadow."""
        for parameter, shadow in self.shadows.items():
            if _storage(shadow) != _storage(parameter):
                parameter.data = shadow.data

    def _leaving(self, tensor: torch.Tensor) -> torch.Tensor:
        """As it crosses the boundary. Of a buffer a copy goes: the next forward may write into it
        before the next stage has read it."""
        detached = tensor.detach()
        if _storage(tensor) in self._buffers:
            detached = detached.clone()
        return detached.requires_grad_(tensor.requires_grad)

    def _needs_gradient(self, inputs: Any) -> bool:
        return any(leaf.requires_grad for leaf in [*self._values, *pytree.tree_leaves(inputs)]
                   if isinstance(leaf, torch.Tensor))


def _flags(outputs: Any) -> list[bool]:
    return [isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for leaf in pytree.tree_leaves(outputs)]


def _edges(outputs: Any) -> list[Any]:
    return [torch.autograd.graph.get_gradient_edge(leaf)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad else None
            for leaf in pytree.tree_leaves(outputs)]


def _storage(tensor: torch.Tensor) -> int | None:
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return tensor.untyped_storage()._cdata if plain else None


def _copied(inputs: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), inputs)
