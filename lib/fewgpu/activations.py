"""Activations need not stay on the device until the backward: recompute them, or move them to the host.

    plain        n layers keep n activations
    recompute    in k segments: the inputs of k, and n / k of the one that is recomputed: k + n / k
                 (least at k = sqrt(n); Chen et al., arXiv 1604.06174)
    offload      each goes to the host while the next layer computes, and comes back before it is needed

ZeRO-Infinity (arXiv 2104.07857) moves the checkpoints between segments likewise.
"""

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.partition import device_of, split
from fewgpu.skip_routes import verify_skips_stay, wrapped
from fewgpu.transport.host import TO_HOST, to_device
from fewgpu.offload.visits import without_autocast
from fewgpu.stage import Stage
from fewgpu.transport.copies import Parcel
from fewgpu.weights import storage


@contextlib.contextmanager
def offloading_activations(device: Device, stay: Iterable[torch.Tensor] = (), ahead: int = 1
                           ) -> Iterator[None]:
    """Inside, what autograd keeps of a forward on `device` moves to the host, and back in the backward,
    which has to be inside, too. Tensors that share memory with those that `stay` (parameters) do.

    While one is used, `ahead` more are on their way: to the host, and back in the reverse order. What is changed
    in place after it was saved is, in the backward, what it was when it was saved (where autograd would refuse);
    of what stays there is no copy, so a backward that needs it refuses, as autograd does: RuntimeError.

    Raises ValueError for a negative `ahead`.
    """
    if ahead < 0:
        raise ValueError(f'at least 0 tensors are on their way while one is used, not {ahead}')
    moved = _Moved(device_of(device), {storage(tensor) for tensor in stay}, ahead)
    with (ThreadPoolExecutor(1) as moved.copying, ThreadPoolExecutor(1) as moved.out,
          ThreadPoolExecutor(1) as moved.back):
        with saved_tensors_hooks(moved.pack, moved.unpack):
            yield
        moved.is_over = True


class _Place:
    """What autograd keeps instead of a tensor: its number in the order of the forward."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Stays(NamedTuple):
    """What autograd keeps of a tensor that stays: itself, and how often it had been changed."""

    tensor: torch.Tensor
    version: int

    def intact(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(f'a tensor of shape {tuple(self.tensor.shape)} that the backward needs was changed in '
                               f'place after the forward (by an optimizer step, say): change it after the backward')
        return self.tensor


class _Moved:
    """What has been moved, in order."""

    copying: ThreadPoolExecutor   # its thread is the host: what the device's allocates counts as the device's
    out: ThreadPoolExecutor
    back: ThreadPoolExecutor

    def __init__(self, device: Device, stay: set[int | None], ahead: int) -> None:
        self._device, self._stay, self._ahead = device, stay, ahead
        self._count = 0
        self._gone: dict[int, Future] = {}     # what is on the host, or on its way, while a graph needs it
        self._coming: dict[int, Future] = {}   # what is on its way back
        self.is_over = False

    def pack(self, tensor: torch.Tensor) -> _Stays | _Place:
        if storage(tensor) in self._stay:
            return _Stays(tensor.detach(), tensor._version)   # with its history, a result would hold its own graph
        number, self._count = self._count, self._count + 1
        parcel = Parcel.of(tensor.detach())
        copy = self.copying.submit(parcel.copy_to, torch.device('cpu')).result()   # now: it may be changed in place
        self._gone[number] = self.out.submit(self._travel, copy, parcel.sent)
        if (before := self._gone.get(number - self._ahead)) is not None:   # or they would queue up, on the device
            before.result()
        place = _Place(number)
        weakref.finalize(place, self._forget, number)   # when its graph is gone
        return place

    def unpack(self, kept: _Stays | _Place) -> torch.Tensor:
        if isinstance(kept, _Stays):
            return kept.intact()
        if self.is_over:
            raise RuntimeError('the activations were on the host, and are gone: call backward inside `with '
                               'offloading_activations(...)`')
        for number in range(kept.number, max(-1, kept.number - 1 - self._ahead), -1):
            if number not in self._coming and number in self._gone:
                self._coming[number] = self.back.submit(self._bring, self._gone[number])
        return self._coming.pop(kept.number).result()

    def _travel(self, copy: torch.Tensor, sent: float) -> torch.Tensor:
        if self._device.link is not None:
            self._device.link.wait(copy, sent, TO_HOST)
        return copy

    def _bring(self, moved: Future) -> torch.Tensor:
        return to_device(moved.result(), self._device)

    def _forget(self, number: int) -> None:
        self._gone.pop(number, None)
        self._coming.pop(number, None)


def train_in_segments(module: nn.Sequential, segments: int, x: torch.Tensor,
                      loss: Callable[[Any], torch.Tensor], device: Device) -> None:
    """A forward and a backward, the layers cut into segments; all but the last are recomputed. Adds to
    `.grad`. Raises ValueError for more segments than layers, or none, and for a skip from one to another."""
    layers = len(module)
    if not 1 <= segments <= layers:
        raise ValueError(f'{layers} layers are cut into 1 to {layers} segments, not {segments}')
    balance = [layers // segments + (s < layers % segments) for s in range(segments)]
    device = device_of(device)
    verify_skips_stay(module, balance, 'segment', 'take fewer segments')
    with torch.enable_grad():
        context = Context.capture([device])
    with torch.enable_grad(), device.active(), without_autocast(context):
        steps = [Stage(s, wrapped(part, s, ()), device).begin(context, 1)
                 for s, part in enumerate(split(module, balance))]
        for step in steps:   # the last one's backward comes at once
            x = step.forward(0, x, 'graph' if step is steps[-1] else 'input')
        x.requires_grad_()
        with context.casting():
            value = loss(x)
        value.backward()
        gradients, x = [x.grad], None
        for step in reversed(steps):
            step.recompute(0)
            gradients = step.backward(0, gradients)
            step.update()   # hands the gradients to the parameters


class Cost(NamedTuple):
    """Of one step."""

    peak: int        #: bytes on the device at once, on top of inputs and parameters (gradients among them)
    seconds: float


def compare(module: nn.Sequential, x: torch.Tensor, loss: Callable[[Any], torch.Tensor], device: Device,
            repeat: int = 1) -> dict[str, Cost]:
    """Peak and least time of a step, plain and in each way of saving memory. The device is metered.

    (Bytes are counted in every step, so all pay for that.) Gradients are gone afterwards."""
    device, root = device_of(device), max(1, round(math.sqrt(len(module))))

    def plainly() -> None:
        loss(module(x)).backward()

    def offloaded() -> None:
        with offloading_activations(device, module.parameters()):
            plainly()

    ways = {'plain': plainly,
            f'recompute, {root} segments': lambda: train_in_segments(module, root, x, loss, device),
            f'recompute, {len(module)} segments':
                lambda: train_in_segments(module, len(module), x, loss, device),
            'offload': offloaded}
    device.meter().adopt([x, *module.parameters(), *module.buffers()])
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(repeat):   # in turn, so that all see the same machine
        for name, way in ways.items():
            costs[name].append(_cost(module, way, device))
    return {name: Cost(max(cost.peak for cost in found), min(cost.seconds for cost in found))
            for name, found in costs.items()}


def _cost(module: nn.Module, way: Callable[[], None], device: Device) -> Cost:
    module.zero_grad()
    with device.active():
        device.ledger.reset_peak()
        before, start = device.ledger.allocated, time.perf_counter()
        way()
        return Cost(device.ledger.peak - before, time.perf_counter() - start)
