"""One stage's work on one micro-batch: forward, recompute, backward, update.

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

A shadow is a leaf that shares its parameter's storage (see fewgpu.weights). The gradients of the
shadows are handed on once for many micro-batches: to the caller's graph at the end of the backward
(GPipe), or to the parameters and their optimizer at an update (Pipeline).
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.gate import Gate, edges, flags
from fewgpu.microbatch import check_leaves
from fewgpu.pipemare import PipeMare
from fewgpu.recompute import Buffers, Swap, dropping_graph, recomputing
from fewgpu.rng import Stream
from fewgpu.split_backward import SplitBackward
from fewgpu.stash import Stash
from fewgpu.weights import Gradients, Weights, accumulate, storage


Shares = list[torch.Tensor | None]   # gradients of a stage's parameters, in their order


@dataclass
class Stage:
    """Layers on a device. `index` counts stages from 0."""

    index: int
    module: nn.Module
    device: Device
    optimizer: torch.optim.Optimizer | PipeMare | None = None   #: for schedules with updates
    average: Callable[[Gradients], Gradients] | None = None   #: over replicas, before an update

    def begin(self, context: Context, micro_batches: int, divisors: Sequence[float] = ()) -> 'StageStep':
        """The stage's part of one step."""
        for layer in self.module.modules():
            if isinstance(layer, DeferredBatchNorm):
                layer.begin(micro_batches)
        if ledger := self.device.ledger:
            ledger.adopt([*self.module.parameters(), *self.module.buffers()], parameters=True)
        return StageStep(self, context, divisors)


@dataclass
class StageStep:
    """One stage during one step. Its methods run in the worker of the stage's device."""

    stage: Stage
    context: Context
    divisors: Sequence[float] = ()   #: of the gradients of each update (none: 1), see MiniBatches.rounds
    updates: int = 0   #: so far, in this step
    _versions: dict[int, Weights] = field(default_factory=dict)
    _stashes: dict[int, Stash] = field(default_factory=dict)
    _overwritten: dict = field(default_factory=dict)   # see Buffers

    def __post_init__(self) -> None:
        # A recompute does as the forward did, although the caller may have called eval() since.
        # (TorchScript keeps its modes elsewhere.)
        parts = [vars(part) for part in self.stage.module.modules() if 'training' in vars(part)]
        self._modes = Swap([(part, 'training') for part in parts])
        self._training = [part['training'] for part in parts]
        self._buffers = {storage(buffer) for buffer in self.stage.module.buffers()}

    def weights(self, version: int) -> Weights:
        """A version that is still there, or the newest."""
        if version not in self._versions and version == self.updates:
            self._versions[version] = Weights(self.stage.module, gradients=self.context.gradients,
                                              updated=self.stage.optimizer is not None)
        return self._versions[version]

    def forward(self, i: int, inputs: Any, keep: str, version: int = 0) -> Any:
        """The outputs for micro-batch `i`, without a graph.

        `keep` is what stays behind for the backward: 'graph', 'input' (then `recompute` comes
        before `backward`) or 'nothing'. `version` is that of the weights.
        """
        weights = self.weights(version)
        if keep == 'input' and not (weights.trains or any(flags(inputs))):
            keep = 'graph'   # which will be empty
        awaited = keep == 'input' or any(stash.buffers for stash in self._stashes.values())
        buffers = Buffers(self.stage.module, self._overwritten) if awaited else None
        if keep == 'input':
            with dropping_graph():   # on a copy: a first layer may work in place
                outputs, _ = self._run(i, _copied(inputs), weights)
            self._stashes[i] = Stash(weights, version, flags(outputs), inputs=inputs, buffers=buffers)
        else:
            outputs, gate = self._run(i, inputs, weights)
            if keep == 'graph':
                self._stashes[i] = Stash(weights, version, flags(outputs), gate, edges(outputs))
        if awaited:
            buffers.forget_unchanged()
        check_leaves(outputs, 'output')
        if version == self.updates:
            weights.hand_on_new_data()
        return pytree.tree_map_only(torch.Tensor, self._leaving, outputs)

    def recompute(self, i: int) -> None:
        """Run the forward of micro-batch `i` again, this time with its graph."""
        stash = self._stashes[i]
        if stash.edges is not None:   # nothing needs a gradient, or the graph was retained
            return
        if stash.weights.changed:
            raise RuntimeError('a parameter was changed between the forward and the backward (by '
                               'an optimizer step, say): the forward cannot be recomputed as it was')
        with (recomputing(), self._modes.to(self._training), stash.buffers.restored(),
              self._corrected(stash)):
            outputs, stash.gate = self._run(i, stash.inputs, stash.weights)
        if flags(outputs) != stash.needs_gradient:
            raise RuntimeError('the recomputed forward does not return what the first one '
                               'returned: a layer must do the same both times')
        stash.edges = edges(outputs)
        stash.inputs = stash.buffers = None
        self._forget_overwritten()

    def backward(self, i: int, gradients: list[torch.Tensor | None], *,
                 retain_graph: bool = False) -> list[torch.Tensor | None]:
        """From one gradient a leaf of the output to one a leaf of the input.

        Gradients of parameters add up in the shadows.
        """
        stash = self._stashes[i] if retain_graph else self._stashes.pop(i)
        if roots := stash.roots(gradients):
            with self._corrected(stash):
                torch.autograd.backward(*map(list, zip(*roots)), retain_graph=retain_graph)
        return stash.gate.take_gradients()

    def backward_inputs(self, i: int, gradients: list[torch.Tensor | None]
                        ) -> list[torch.Tensor | None]:
        """The half of `backward` that other stages wait for; `backward_weights` has to follow."""
        stash = self._stashes[i]
        stash.split = SplitBackward(stash.roots(gradients), stash.gate.anchor)
        with self._corrected(stash):
            stash.split.inputs()
        stash.edges = None
        return stash.gate.take_gradients()

    def backward_weights(self, i: int) -> None:
        """The other half: gradients of parameters add up in the shadows."""
        with self._corrected(stash := self._stashes.pop(i)):
            stash.split.weights()

    def take_gradients(self) -> Gradients:
        """What has gathered for each parameter since the last time, in all versions."""
        taken = [weights.take_gradients() for weights in self._versions.values()]
        gradients: Gradients = {}
        for parameter in taken[0] if taken else ():
            parts = [part[parameter] for part in taken if part[parameter] is not None]
            gradients[parameter] = sum(parts[1:], parts[0]) if parts else None
        return gradients

    def take_share(self) -> Shares:
        """What has gathered since the last time, for all replicas of the stage."""
        self.weights(self.updates)   # a replica without a forward has parameters, too
        return [*self.take_gradients().values()]

    def _add_up(self, shares: Sequence[Shares]) -> Gradients:
        """In their order, so that it is the same on all replicas to the last bit."""
        gradients: Gradients = {}
        for parameter, *parts in zip(self.weights(self.updates).shadows, *shares, strict=True):
            parts = [part for part in parts if part is not None]
            gradients[parameter] = sum(parts[1:], parts[0].clone()) if parts else None   # others may copy parts[0]
        return gradients

    @torch.no_grad()
    def update(self, keep: Collection[int] = (), shares: Sequence[Shares] | None = None) -> None:
        """Hand the gradients to the parameters, and let the optimizer, if there is one, use them.

        `keep` are the versions needed afterwards. If the newest is none of them, it is overwritten:
        micro-batches that are stashed with it will find the new weights in it. If the stage lives on
        several devices, `shares` are what each of them has taken, this one's among them: they are added up.
        """
        gradients = self.take_gradients() if shares is None else self._add_up(shares)
        if self.divisors and (divisor := self.divisors[self.updates]) != 1.0:
            gradients = {parameter: None if each is None else each / divisor for parameter, each in gradients.items()}
        if self.stage.average is not None:
            gradients = self.stage.average(gradients)
        overwritten = None if self.updates in keep else self._versions.get(self.updates)
        self._versions = {version: self.weights(version) for version in keep}
        if any(stash.weights is overwritten for stash in self._stashes.values()):
            self._versions[self.updates + 1] = overwritten
        try:
            while gradients:
                accumulate(*gradients.popitem())
            if self.stage.optimizer is not None:
                if self.updates in keep:
                    for parameter in self._versions[self.updates].shadows:
                        parameter.data = parameter.data.clone()
                self.stage.optimizer.step()
        finally:   # what is left of a step that failed would be added to the next one
            if self.stage.optimizer is not None:
                self.stage.optimizer.zero_grad()
        self.updates += 1

    def _forget_overwritten(self) -> None:
        """A long run would gather what its buffers have held."""
        held = {key for stash in self._stashes.values() if stash.buffers for key in stash.buffers.keys}
        for key in self._overwritten.keys() - held:
            del self._overwritten[key]

    def _corrected(self, stash: Stash) -> contextlib.AbstractContextManager:
        """Inside, the weights are those that PipeMare takes for a backward."""
        mare = self.stage.optimizer if isinstance(self.stage.optimizer, PipeMare) else None
        return mare.corrected(self.updates - stash.version) if mare else contextlib.nullcontext()

    def _run(self, i: int, inputs: Any, weights: Weights) -> tuple[Any, Gate]:
        gate = Gate()
        stream = Stream(self.context.seed, self.stage.index, i, self.stage.device.torch)
        with weights.in_place(), self.context.casting(), stream:
            outputs = self.stage.module(gate.enter(inputs))
        weights.mark()
        return outputs, gate

    def _leaving(self, tensor: torch.Tensor) -> torch.Tensor:
        """As it crosses the boundary. Of a buffer a copy goes: the next forward may write into it
        before the next stage has read it."""
        detached = tensor.detach()
        if storage(tensor) in self._buffers:
            detached = detached.clone()
        return detached.requires_grad_(tensor.requires_grad)


def _copied(inputs: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), inputs)
