"""The operations below what a program calls, those of a backward as well: each runs where its tensors are."""

from typing import Any

import torch

from fewgpu.workshop.practice.gpu_state import CPU, PretendGpus, tensors_in
from fewgpu.workshop.practice.gpu_torch import DispatchMode

_aten = torch.ops.aten
# Their indices may be on the CPU.
_INDEXED = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}


class Kernels(DispatchMode):
    """Every operation runs where its tensors are, and they have to be in one place."""

    def __init__(self, gpus: PretendGpus) -> None:
        super().__init__()
        self._gpus = gpus

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if '_foreach_' in func.name():
            return self._each(func, args, kwargs or {})
        device = self._copying(args) if func.overloadpacket is _aten.copy_ else self._common(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if not self._gpus.knows(tensor):
                self._gpus.assign(tensor, device)
        return result

    def _each(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """An operation on lists of tensors is one for each place in the lists."""
        parts = [*args, *kwargs.values()]
        lists = [part for part in parts if isinstance(part, (list, tuple)) and list(tensors_in(part))]
        single = [part for part in parts if isinstance(part, torch.Tensor)]
        devices = [self._common(func, (*each, *single), {}) for each in zip(*lists)]
        result = func(*args, **kwargs)
        for device, tensor in zip(devices, tensors_in(result)):
            if not self._gpus.knows(tensor):
                self._gpus.assign(tensor, device)
        return result

    def _common(self, func: Any, args: tuple, kwargs: dict) -> torch.device:
        """Where all the tensors are. Numbers on the CPU, and indices, may go along with tensors on a GPU."""
        loose = set(map(id, tensors_in(args[1]))) if func.overloadpacket in _INDEXED else ()
        found: dict[torch.device, None] = {}
        tensors = list(tensors_in([*args, *kwargs.values()]))
        for tensor in tensors:
            device = self._gpus.device_of(tensor)
            if device != CPU or tensor.dim() and id(tensor) not in loose:
                found[device] = None
        if len(found) > 1:
            one, other, *_ = found
            raise RuntimeError(f'Expected all tensors to be on the same device, but found at least two devices, '
                               f'{one} and {other}! (in {func.overloadpacket.__name__})')
        return next(iter(found), CPU if tensors else self._gpus.default)

    def _copying(self, args: tuple) -> torch.device:
        """`copy_` goes from device to device."""
        device, source = map(self._gpus.device_of, args[:2])
        if source != device:
            self._gpus.note_move(args[1], source, device)
        return device
