"""Units of work: what is done with one shard on a device, and what of a mini-batch lives between them.

    F0  F1  ..  L (the last shard: forward, loss, backward)  ..  B1  B0

A unit is promoted (its shard is copied to a device), computed, and stored (gradients go back to the
host, where the shard is updated). `fewgpu.spill.spilled` runs the units of one model, `fewgpu.spill.sharp` those of
many.
"""

import contextlib
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.gate import flags
from fewgpu.loss import LossFn
from fewgpu.recompute import dropping_graph, recomputing
from fewgpu.run import _LIBRARIES
from fewgpu.spill.shard import Placed, Shard
from fewgpu.stage import Stage, StageStep
from fewgpu.weights import Gradients


class Unit(NamedTuple):
    """What one shard does at a time: 'F' forward, 'B' backward with recompute, 'L' both and the loss.

    (A unit of work. In `fewgpu.zero` and `fewgpu.offload` a unit is a part of the model.)
    """

    kind: str
    shard: int


class Visit(NamedTuple):
    """What was done for a unit, from `start` to `end` (seconds): 'load', 'compute' or 'store'."""

    what: str
    unit: Unit
    device: Device
    start: float
    end: float


def units(shards: int) -> list[Unit]:
    """Of one mini-batch, in order: 2 * shards - 1."""
    last = shards - 1
    return [*(Unit('F', s) for s in range(last)), Unit('L', last),
            *(Unit('B', s) for s in reversed(range(last)))]


class MiniBatch:
    """One mini-batch on its way through the shards: what lives between two units.

    `visits` receives what was done when; with `inputs_on_host` what a forward keeps goes to the host; errors
    name the model, if it has a name. Without `updates` gradients stay in the parameters' `.grad`; the backward
    starts from `scale`.
    """

    def __init__(self, shards: Sequence[Shard], with_loss: 'WithLoss | None', x: Placed, y: Any,
                 context: Context, visits: list[Visit], *, inputs_on_host: bool, name: str = '',
                 updates: bool = True, scale: float = 1.0) -> None:
        self.shards, self.loss = shards, None   #: the loss: when the unit L is done
        self._with_loss, self._context, self._visits = with_loss, context, visits
        self._on_host, self._name, self._target = inputs_on_host, name, Placed(y, None)
        self._updates, self._scale = updates, scale
        self.inputs = {0: x}              #: shard -> its input, while that is needed
        self.gradient = Placed([], None)  #: of the input of the shard whose backward was the last one
        self._trained: list[int] = []

    def promote(self, unit: Unit, device: Device) -> tuple[Unit, list[torch.Tensor]]:
        """The unit, and its shard's copies on the device. Raises as `Shard.promote` does."""
        with self._seen('load', unit, device):
            return unit, self.shards[unit.shard].promote(device, again=unit.kind == 'B')

    def compute(self, unit: Unit, copies: list[torch.Tensor], device: Device) -> Gradients:
        """Run a unit in this thread; the gradients of the shard's parameters, on the device."""
        shard = self.shards[unit.shard]
        work = {'F': self._forward, 'L': self._last, 'B': self._backward}[unit.kind]
        module = self._with_loss if unit.kind == 'L' else shard.module
        with torch.enable_grad(), self._context.entered(device), self._seen('compute', unit, device):
            inputs = self.inputs.pop(unit.shard).to(device)
            with shard.on(copies, keep_changes=unit.kind != 'B'), device.counting():
                step = Stage(unit.shard, module, device).begin(self._context, 1)
                work(step, inputs, device)
                gradients = step.take_gradients()
            if not device.is_virtual:
                torch.cuda.current_stream(device.torch).synchronize()
            if unit.kind == 'F':
                self.inputs[unit.shard] = inputs.to(None) if self._on_host else inputs
            else:
                self._trained.append(unit.shard)
            if unit.kind == 'L':
                self.loss = self.loss.to('cpu', copy=True)
        return gradients

    def store(self, unit: Unit, gradients: Gradients, device: Device) -> None:
        """Write the gradients of a unit back, and update its shard."""
        with self._seen('store', unit, device):
            self.shards[unit.shard].write_back(gradients, device, update=self._updates)

    def _forward(self, step: StageStep, inputs: Placed, device: Device) -> None:
        copy = pytree.tree_map_only(   # a first layer may work in place
            torch.Tensor, lambda t: t.clone().detach().requires_grad_(t.requires_grad), inputs.value)
        with device.paced(), dropping_graph():
            outputs = step.forward(0, copy, 'nothing')
        self.inputs[step.stage.index + 1] = Placed(outputs, device)

    def _last(self, step: StageStep, inputs: Placed, device: Device) -> None:
        target = self._target.to(device)
        with device.paced():
            loss = step.forward(0, (inputs.value, target.value), 'graph')
            found = step.backward(0, [torch.full_like(loss, self._scale)])
        self.gradient = Placed(found[:len(pytree.tree_leaves(inputs.value))], device)
        self.loss = loss.detach()

    def _backward(self, step: StageStep, inputs: Placed, device: Device) -> None:
        gradient = self.gradient.to(device)
        with device.paced(), recomputing():
            outputs = step.forward(0, inputs.value, 'graph')
            if len(flags(outputs)) != len(gradient.value):
                raise RuntimeError('the recomputed forward does not return what the first one '
                                   'returned: a layer must do the same both times')
            del outputs   # its memory goes before the backward
            found = step.backward(0, gradient.value)
        self.gradient = Placed(found, device)

    @contextlib.contextmanager
    def _seen(self, what: str, unit: Unit, device: Device) -> Iterator[None]:
        """Note when it was done; an error says where it happened, and what was updated before."""
        start = time.perf_counter()
        try:
            yield
        except BaseException as error:
            error.add_note(_where(error, what, unit, self._name, device))
            if self._trained:
                done = ', '.join(map(str, sorted(self._trained)))
                error.add_note(f'shards {done} have had their gradients in this step, others not: load a '
                               f'checkpoint before you go on')
            raise
        self._visits.append(Visit(what, unit, device, start, time.perf_counter()))


class WithLoss(nn.Module):
    """The last shard with the loss of the mini-batch: from (inputs, target) to the loss.

    Any loss will do, for it sees all rows. Raises TypeError for one that nobody would train.
    """

    def __init__(self, module: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        if not callable(loss_fn) or isinstance(loss_fn, nn.Module) and [*loss_fn.parameters()]:
            raise TypeError('loss_fn takes the output and the target, as nn.functional.cross_entropy does, '
                            'and has no parameters, which no shard would train: put those into the last '
                            'layer')
        self.module, self.loss_fn = module, loss_fn

    def forward(self, inputs: tuple[Any, Any]) -> torch.Tensor:
        value, target = inputs
        output = self.module(value)
        loss = self.loss_fn(output, target)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise TypeError(f'loss_fn returns one number, a tensor without dimensions, not {loss!r}')
        if any(flags(output)) and not loss.requires_grad:
            raise RuntimeError('the loss does not depend on the output, or not differentiably: '
                               'nothing would be trained')
        return loss


class Behind:
    """Stores the gradients of units, in a thread behind the loop that computes them; one at a time, so that
    those of two units at most are on the device. Off: at once."""

    def __init__(self, device: Device, on: bool = True) -> None:
        self._pool = thread_beside(device, 'fewgpu behind') if on else None
        self._last: Future | None = None

    def __enter__(self) -> 'Behind':
        return self

    def __call__(self, batch: MiniBatch, unit: Unit, gradients: Gradients, device: Device) -> None:
        """Raises what the store before raised."""
        if unit.kind == 'F':
            return
        if self._pool is None:
            return batch.store(unit, gradients, device)
        self.wait()
        self._last = self._pool.submit(batch.store, unit, gradients, device)
        batch.shards[unit.shard].written = self._last

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def __exit__(self, kind: type | None, *_: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if kind is None:
            self.wait()


def _where(error: BaseException, what: str, unit: Unit, model: str, device: Device) -> str:
    """Which shard of which model, and which line that the learner wrote."""
    name = {'F': 'forward', 'L': 'forward, loss and backward', 'B': 'backward'}[unit.kind]
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if not frame.filename.startswith(_LIBRARIES)]
    line = f', at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}' if own else ''
    of = f' of {model}' if model else ''
    return f'in shard {unit.shard}{of} on {device.name}, {what} of its {name}{line}'


def thread_beside(device: Device, name: str) -> ThreadPoolExecutor:
    """A thread for what goes on beside a device; if that is virtual, the thread too uses one core."""
    callers, pool = torch.get_num_threads(), ThreadPoolExecutor(1, name)
    if device.is_virtual:
        pool.submit(_use_one_core).result()
        torch.set_num_threads(callers)   # the thread's own number became the default of threads to come
    return pool


def _use_one_core() -> None:
    torch.get_num_threads()   # or torch's lazy set-up would undo the next line
    torch.set_num_threads(1)
