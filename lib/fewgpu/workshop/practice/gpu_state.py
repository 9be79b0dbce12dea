"""The GPUs that are pretended: which tensor lives on which of them, and what was copied from one to another."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fewgpu.workshop.practice.gpu_torch import key_of, without_modes

CPU = torch.device('cpu')


@dataclass(frozen=True)
class Move:
    """A tensor was copied from one device to another, or the gradient of one that was."""

    source: torch.device
    destination: torch.device
    shape: tuple[int, ...]
    bytes: int

    def __str__(self) -> str:
        shape = 'x'.join(map(str, self.shape)) or 'a number'
        return f'{self.source} -> {self.destination}  {shape}  {self.bytes} bytes'


class PretendGpus:
    """The GPUs that are pretended, and what has been copied."""

    def __init__(self, count: int) -> None:
        self.devices = [torch.device('cuda', index) for index in range(count)]
        self.moves: list[Move] = []   #: in order
        self.default = CPU            #: where tensors are that are made of nothing
        self._home: dict[int, tuple[weakref.ref, torch.device]] = {}   # of each storage that is known

    def forget(self) -> None:
        """Begin to count anew."""
        self.moves = []

    def device(self, name: Any) -> torch.device:
        """From all that torch takes for a device: 'cuda:1', 1, torch.device('cuda', 1). `cuda` alone is the first.

        Raises RuntimeError, as CUDA does, if there is no such GPU.
        """
        device = torch.device('cuda', name) if isinstance(name, int) else torch.device(name)
        if device.type == 'cuda' and device.index is None:
            device = torch.device('cuda', 0)
        if device.type == 'cuda' and device not in self.devices:
            raise RuntimeError(f'CUDA error: invalid device ordinal: there is no {device}, for there are '
                               f'{len(self.devices)} GPUs, cuda:0 to cuda:{len(self.devices) - 1}')
        return CPU if device.type == 'cpu' else device

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Where a tensor lives. (Inside, `tensor.device` says the same.)"""
        with without_modes():
            if tensor.device.type != 'cpu' or tensor.layout is not torch.strided:
                return tensor.device
            _, device = self._home.get(key_of(tensor.untyped_storage()), (None, CPU))
        return device

    def knows(self, tensor: torch.Tensor) -> bool:
        """Is it decided where that tensor lives?"""
        return tensor.layout is not torch.strided or key_of(tensor.untyped_storage()) in self._home

    def assign(self, tensor: torch.Tensor, device: torch.device) -> None:
        """From now on that tensor, and all that share its storage, live there."""
        with without_modes():
            if tensor.device.type == 'cpu' and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                key = key_of(storage)
                self._home[key] = weakref.ref(storage, lambda _: self._home.pop(key, None)), device

    def move(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The tensor on a device: itself if it is there, else a copy, through which gradients flow back."""
        return tensor if self.device_of(tensor) == device else _Move.apply(tensor, device, self)

    def note_move(self, tensor: torch.Tensor, source: torch.device, destination: torch.device) -> None:
        size = tensor.numel() * tensor.element_size()
        self.moves.append(Move(source, destination, tuple(tensor.shape), size))

    def bytes_on(self, device: torch.device) -> int:
        """Of all that lives there now."""
        with without_modes():
            storages = [reference() for reference, where in [*self._home.values()] if where == device]
            return sum(storage.nbytes() for storage in storages if storage is not None)

    @contextmanager
    def making(self, device: torch.device) -> Iterator[None]:
        """Inside, tensors that are made of nothing are on that device."""
        before, self.default = self.default, device
        try:
            yield
        finally:
            self.default = before


class _Move(torch.autograd.Function):
    """A copy to another device. Its gradient travels the other way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device, gpus: PretendGpus) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.source, ctx.gpus = gpus.device_of(tensor), gpus
        copy = tensor.clone()
        gpus.assign(copy, device)
        gpus.note_move(tensor, ctx.source, device)
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        return None if gradient is None else ctx.gpus.move(gradient, ctx.source), None, None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value: itself, or those in whatever it is made of."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
