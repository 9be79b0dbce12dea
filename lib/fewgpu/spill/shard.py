"""A shard: layers that live in the memory of the host, and visit a device for a unit of work.

    host      parameters, buffers, gradients, optimizer ──┐ promote: a copy        ▲ write back:
                                                          ▼                        │ gradients
    device                                        parameters, buffers ──► unit ────┘

The layers themselves never move. For the time of a unit their parameters and buffers are given the
data of the copies; so their identity, hooks, gradients and optimizer stay where they are.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import nn

from fewgpu.device import Device
from fewgpu.link import bytes_in
from fewgpu.skip_routes import wrapped
from fewgpu.transport.host import sent
from fewgpu.weights import Gradients, accumulate, storage


class Shard:
    """Layers in host memory, and the optimizer of what is trained in them, which works there too.

    (Hydra's word: some of the layers, whole. In `fewgpu.zero` a shard is a rank's part of flat parameters.)
    Skips (`fewgpu.skip`) stay inside.
    """

    def __init__(self, index: int, module: nn.Sequential,
                 optimizer: torch.optim.Optimizer | None = None) -> None:
        self.index, self.module, self.optimizer = index, wrapped(module, index, ()), optimizer
        self.written: Future | None = None   #: of the last write-back, if it goes on beside
        self._tensors = [*module.parameters(), *module.buffers()]
        self._buffers = len(list(module.buffers()))
        self._before: dict[torch.Tensor, torch.Tensor] = {}   # as the forward found what it changed

    @property
    def bytes(self) -> int:
        """Of the parameters and buffers, which are what a promotion moves."""
        return bytes_in(self._tensors)

    def promote(self, device: Device, *, again: bool = False) -> list[torch.Tensor]:
        """Copies on the device of parameters and buffers; `again`: as the forward found them.

        Waits for the last write-back. Raises torch.OutOfMemoryError if they do not fit.
        """
        if self.written is not None:
            self.written.result()
        before = self._before if again else {}
        values = [before.get(tensor, tensor).detach() for tensor in self._tensors]
        copies = sent(values, None, device)
        if device.ledger:
            device.ledger.adopt(copies, parameters=True)
        return copies

    @contextlib.contextmanager
    def on(self, copies: list[torch.Tensor], *, keep_changes: bool) -> Iterator[None]:
        """Inside, the layers compute with the copies. What a forward changes (a running mean, weights
        under a constraint) is kept, or belongs to a recompute and is forgotten."""
        homes = [tensor.data for tensor in self._tensors]
        for tensor, copy in zip(self._tensors, copies):
            tensor.data = copy
        versions = [tensor._version for tensor in self._tensors]
        try:
            yield
            changed = [tensor.data if keep_changes and self._may_have_changed(k, versions[k], copy) else None
                       for k, (tensor, copy) in enumerate(zip(self._tensors, copies))]
        finally:
            for tensor, home in zip(self._tensors, homes):
                tensor.data = home
        self._before = {}
        for tensor, home, value in zip(self._tensors, homes, changed):
            if value is not None:
                self._before[tensor] = home.clone()
                home.copy_(value)

    def _may_have_changed(self, k: int, version: int, copy: torch.Tensor) -> bool:
        """Batch norm writes into its buffers without counting up their version: any buffer may have."""
        tensor = self._tensors[k]
        return (k >= len(self._tensors) - self._buffers or tensor._version != version
                or storage(tensor) != storage(copy))

    @torch.no_grad()
    def write_back(self, gradients: Gradients, device: Device, *, update: bool = True) -> None:
        """Take the gradients to the host, and let the optimizer, if there is one, use them there (`update`)."""
        optimizer = self.optimizer if update else None
        parameters = [parameter for parameter, gradient in gradients.items() if gradient is not None]
        values = sent([gradients[parameter] for parameter in parameters], device, None)
        gradients.clear()   # the device's memory goes before the optimizer works
        try:
            for parameter, gradient in zip(parameters, values):
                accumulate(parameter, gradient)
            if optimizer is not None:
                optimizer.step()
        finally:   # what is left of a step that failed would be added to the next one
            if optimizer is not None:
                optimizer.zero_grad()


class Placed(NamedTuple):
    """A nesting of tensors without a graph, and the device that it is on (None: the host)."""

    value: Any
    device: Device | None

    def to(self, device: Device | None) -> 'Placed':
        """The same, or a copy on another device."""
        return self if device is self.device else Placed(sent(self.value, self.device, device), device)
