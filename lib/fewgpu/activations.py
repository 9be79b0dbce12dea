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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.partition import split
from fewgpu.stage import Stage
from fewgpu.transport.copies import Parcel
from fewgpu.unit import to_device, to_host
from fewgpu.weights import storage


@contextlib.contextmanager
def offloading_activations(device: Device, stay: Iterable[torch.Tensor] = (), ahead: int = 1) -> Iterator[None]:
    """Inside, what autograd keeps of a forward on `device` moves to the host, and back in the backward,
    which has to be inside, too. Tensors that share memory with those that `stay` (parameters) do.

    While one is used, `ahead` more are on their way: to the host, and back in the reverse order.
    """
    moved = _Moved(device, {storage(tensor) for tensor in stay}, ahead)
    with ThreadPoolExecutor(1) as moved.out, ThreadPoolExecutor(1) as moved.back:
        with saved_tensors_hooks(moved.pack, moved.unpack):
            yield
        moved.is_over = True


class _Moved:
    """What has been moved, in order."""

    out: ThreadPoolExecutor
    back: ThreadPoolExecutor

    def __init__(self, device: Device, stay: set[int | None], ahead: int) -> None:
        self._device, self._stay, self._ahead = device, stay, ahead
        self._gone: list[Future | None] = []      # what is on the host, or on its way
        self._coming: dict[int, Future] = {}      # what is on its way back
        self.is_over = False

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | int:
        if storage(tensor) in self._stay:
            return tensor
        self._gone.append(self.out.submit(to_host, Parcel.of(tensor.detach()), self._device))
        if len(self._gone) > self._ahead:   # or they would queue up, on the device
            self._gone[-1 - self._ahead].result()
        return len(self._gone) - 1

    def unpack(self, kept: torch.Tensor | int) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        if self.is_over:
            raise RuntimeError('the activations were on the host, and are gone: call backward inside `with '
                               'offloading_activations(...)`')
        for number in range(kept, max(-1, kept - 1 - self._ahead), -1):
            if number not in self._coming:
                self._coming[number] = self.back.submit(self._bring, number)
        return self._coming.pop(kept).result()

    def _bring(self, number: int) -> torch.Tensor:
        return to_device(self._gone[number].result(), self._device)


def train_in_segments(module: nn.Sequential, segments: int, x: torch.Tensor,
                      loss: Callable[[Any], torch.Tensor], device: Device) -> None:
    """A forward and a backward, the layers cut into segments that are recomputed: adds to `.grad`."""
    layers = len(module)
    if not 1 <= segments <= layers:
        raise ValueError(f'{layers} layers are cut into 1 to {layers} segments, not {segments}')
    balance = [layers // segments + (s < layers % segments) for s in range(segments)]
    with torch.enable_grad(), device.active():
        context = Context.capture([device])
        steps = [Stage(s, part, device).begin(context, 1) for s, part in enumerate(split(module, balance))]
        for step in steps:
            x = step.forward(0, x, 'input')
        x.requires_grad_()
        loss(x).backward()
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
    root = max(1, round(math.sqrt(len(module))))

    def plainly() -> None:
        loss(module(x)).backward()

    def offloaded() -> None:
        with offloading_activations(device, module.parameters()):
            plainly()

    ways = {'plain': plainly, 'recompute, 1 segment': lambda: train_in_segments(module, 1, x, loss, device),
            f'recompute, {root} segments': lambda: train_in_segments(module, root, x, loss, device),
            f'recompute, {len(module)} segments': lambda: train_in_segments(module, len(module), x, loss, device),
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
