"""GPUs to practise on where there are none: tensors stay in the CPU's memory and behave as if they were on `cuda:k`.

    with pretend_gpus(2) as gpus:
        layer = nn.Linear(3, 4).to('cuda:1')
        x = torch.ones(5, 3)
        layer(x)                       # RuntimeError: Expected all tensors to be on the same device, but found at ...
        layer(x.to('cuda:1')).device   # cuda:1
        gpus.moves                     # what was copied from where to where, and how many bytes

Inside, `.to`, `.cuda` and `.cpu`, `device=` and `.device` work as they do with GPUs, also in a backward, in an
optimizer and for views. An operation whose tensors are on different devices raises what CUDA raises. All of it holds
for the thread that has entered, and makes small operations several times slower. `torch.cuda` itself knows nothing of
these GPUs, and neither does a random generator.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

CPU = torch.device('cpu')


@dataclass(frozen=True)
class Move:
    """A tensor was copied from one device to another."""

    source: torch.device
    destination: torch.device
    shape: tuple[int, ...]
    bytes: int
    is_gradient: bool = False   #: by the backward of a move of the forward

    def __str__(self) -> str:
        shape = 'x'.join(map(str, self.shape)) or 'a number'
        return f'{self.source} -> {self.destination}  {shape}  {self.bytes} bytes'


@dataclass(frozen=True)
class Operation:
    """An operation ran on a device (looking at the same numbers in another shape is none)."""

    device: torch.device
    name: str   #: 'addmm', say: torch's name of it


class PretendGpus:
    """The GPUs that are pretended, and what has happened on them."""

    def __init__(self, count: int) -> None:
        self.devices = [torch.device('cuda', index) for index in range(count)]
        self.moves: list[Move] = []             #: in order
        self.operations: list[Operation] = []   #: in order, those of backwards as well
        self._home: dict[int, tuple[weakref.ref, torch.device]] = {}   # of each storage that is known
        self._quiet = False
        self.default = CPU   #: where tensors are that are made of nothing

    def forget(self) -> None:
        """Begin to count anew."""
        self.moves, self.operations = [], []

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
        with torch._C.DisableTorchFunction():
            if tensor.device.type != 'cpu' or tensor.layout is not torch.strided:
                return tensor.device
            _, device = self._home.get(tensor.untyped_storage()._cdata, (None, CPU))
        return device

    def knows(self, tensor: torch.Tensor) -> bool:
        """Is it decided where that tensor lives?"""
        return tensor.layout is not torch.strided or tensor.untyped_storage()._cdata in self._home

    def assign(self, tensor: torch.Tensor, device: torch.device) -> None:
        """From now on that tensor, and all that share its storage, live there."""
        with torch._C.DisableTorchFunction():
            if tensor.device.type == 'cpu' and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                key = storage._cdata
                self._home[key] = weakref.ref(storage, lambda _: self._home.pop(key, None)), device

    def move(self, tensor: torch.Tensor, device: torch.device, *, is_gradient: bool = False) -> torch.Tensor:
        """The tensor on a device: itself if it is there, else a copy, through which gradients flow back."""
        if self.device_of(tensor) == device:
            return tensor
        return _Move.apply(tensor, device, self, is_gradient)

    def note_move(self, tensor: torch.Tensor, source: torch.device, destination: torch.device,
                  is_gradient: bool = False) -> None:
        size = tensor.numel() * tensor.element_size()
        self.moves.append(Move(source, destination, tuple(tensor.shape), size, is_gradient))

    @contextmanager
    def making(self, device: torch.device) -> Iterator[None]:
        """Inside, tensors that are made of nothing are on that device."""
        before, self.default = self.default, device
        try:
            yield
        finally:
            self.default = before

    @property
    def is_quiet(self) -> bool:
        """Is what runs now a part of a move, and no operation of its own?"""
        return self._quiet

    @contextmanager
    def quietly(self) -> Iterator[None]:
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before


class _Move(torch.autograd.Function):
    """A copy to another device. Its gradient travels the other way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device, gpus: PretendGpus,
                is_gradient: bool) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.source, ctx.gpus = gpus.device_of(tensor), gpus
        with gpus.quietly():
            copy = tensor.clone()
        gpus.assign(copy, device)
        gpus.note_move(tensor, ctx.source, device, is_gradient)
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None, None]:
        back = None if gradient is None else ctx.gpus.move(gradient, ctx.source, is_gradient=True)
        return back, None, None, None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value: itself, or those in whatever it is made of."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


@contextmanager
def pretend_gpus(count: int) -> Iterator[PretendGpus]:
    """Inside, there are that many GPUs, whatever the machine has. Tensors that come from outside are on the CPU."""
    from fewgpu.workshop.practice.gpu_calls import Calls   # they need what stands above
    from fewgpu.workshop.practice.gpu_kernels import Kernels

    gpus = PretendGpus(count)
    with Kernels(gpus), Calls(gpus):
        yield gpus
