"""What a program calls: moves are carried out, and whatever asks for a device is answered, as if there were GPUs."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fewgpu.workshop.practice.gpu_state import CPU, PretendGpus, tensors_in
from fewgpu.workshop.practice.gpu_torch import parse_to

Handler = Callable[['Calls', Callable, tuple, dict], Any]


class Calls(TorchFunctionMode):
    """Whatever asks for a device, or names one, is answered as if there were GPUs."""

    def __init__(self, gpus: PretendGpus) -> None:
        super().__init__()
        self.gpus = gpus

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if handler := _HANDLERS.get(func):
            return handler(self, func, args, kwargs)
        if kwargs.get('device') is not None and (device := self.gpus.device(kwargs['device'])).type in ('cpu', 'cuda'):
            return self._make(func, args, {**kwargs, 'device': CPU}, device)
        device = next((device for tensor in tensors_in([*args, *kwargs.values()])
                       if (device := self.gpus.device_of(tensor)) != CPU), self.gpus.default)
        with self.gpus.making(device):   # some make tensors of their own, beside those they are given
            return func(*args, **kwargs)

    def _make(self, func: Callable, args: tuple, kwargs: dict, device: torch.device) -> Any:
        """A function that makes a tensor on a device; one that is handed a tensor copies it."""
        given = args[0] if args else kwargs.get('data', kwargs.get('obj'))
        if func in (torch.as_tensor, torch.asarray) and isinstance(given, torch.Tensor):
            return self.gpus.move(func(*args, **kwargs), device)
        if (func is torch.tensor and isinstance(given, torch.Tensor)
                and (source := self.gpus.device_of(given)) != device):
            self.gpus.note_move(given, source, device)
        with self.gpus.making(device):
            result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            self.gpus.assign(tensor, device)
        return result


def _to(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """Tensor.to(device, ...), .to(dtype, ...), .to(other, ...), with any of it by name."""
    tensor, rest = args[0], []
    device = kwargs.pop('device', None)
    for part in args[1:]:
        if isinstance(part, (str, torch.device)) or isinstance(part, int) and not isinstance(part, bool):
            device = part
        elif isinstance(part, torch.Tensor):
            device, kwargs['dtype'] = calls.gpus.device_of(part), part.dtype
        elif part is not None or rest:
            rest.append(part)
    if isinstance(other := kwargs.pop('other', None), torch.Tensor):
        device, kwargs['dtype'] = calls.gpus.device_of(other), other.dtype
    kwargs.setdefault('dtype', rest.pop(0) if rest and isinstance(rest[0], torch.dtype) else tensor.dtype)
    device = calls.gpus.device_of(tensor) if device is None else calls.gpus.device(device)
    if device.type not in ('cpu', 'cuda'):
        return func(tensor, device, **kwargs)
    there = calls.gpus.move(tensor, device)
    if there is not tensor and kwargs['dtype'] == tensor.dtype:
        return there
    if len(rest) > 1:
        kwargs['copy'] = rest[1]
    return func(there, **{**kwargs, 'copy': kwargs.get('copy', False) and there is tensor})


def _read(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> Any:
    """What nn.Module.to was given; it moves its tensors later. Without GPUs torch knows none by its number alone."""
    device, *rest = func(*map(_named, args), **{name: _named(part) for name, part in kwargs.items()})
    for tensor in tensors_in([*args, *kwargs.values()]):   # whose device it shall be
        device = calls.gpus.device_of(tensor)
    return device, *rest


def _named(part: Any) -> Any:
    return torch.device('cuda', part) if isinstance(part, int) and not isinstance(part, bool) else part


def _cuda(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    name = args[1] if len(args) > 1 else kwargs.get('device')
    return calls.gpus.move(args[0], calls.gpus.device('cuda' if name is None else name))


def _numpy(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> Any:
    if (device := calls.gpus.device_of(args[0])) != CPU:
        raise TypeError(f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                        f'host memory first.')
    return func(*args, **kwargs)


def _shown(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> str:
    device = calls.gpus.device_of(args[0])
    text = func(*args, **kwargs)
    return text if device == CPU else f"{text.removesuffix(')')}, device='{device}')"


def _deepcopied(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    copy = func(*args, **kwargs)
    calls.gpus.assign(copy, calls.gpus.device_of(args[0]))
    return copy


def _copied_into(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> Any:
    """`one.copy_(other)` and `one[...] = other` go from device to device, and so do their gradients."""
    *before, value = args
    basic = func is torch.Tensor.copy_ or not list(tensors_in(args[1]))   # by slices and numbers
    if isinstance(value, torch.Tensor) and basic and len(args) == (2 if func is torch.Tensor.copy_ else 3):
        args = (*before, calls.gpus.move(value, calls.gpus.device_of(args[0])))
    return func(*args, **kwargs)


def _get_device(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> int:
    device = calls.gpus.device_of(args[0])
    return -1 if device == CPU else device.index


def _backward(calls: Calls, func: Callable, args: tuple, kwargs: dict) -> None:
    gradient = args[1] if len(args) > 1 else kwargs.get('gradient')
    here = calls.gpus.device_of(args[0])
    if gradient is not None and (there := calls.gpus.device_of(gradient)) != here:
        raise RuntimeError(f'the backward got an invalid gradient: expected device {here} but got {there}')
    return func(*args, **kwargs)


_HANDLERS: dict[Callable, Handler] = {
    torch.Tensor.device.__get__: lambda calls, func, args, kwargs: calls.gpus.device_of(args[0]),
    torch.Tensor.is_cuda.__get__: lambda calls, func, args, kwargs: calls.gpus.device_of(args[0]).type == 'cuda',
    torch.Tensor.is_cpu.__get__: lambda calls, func, args, kwargs: calls.gpus.device_of(args[0]).type == 'cpu',
    torch.Tensor.get_device: _get_device,
    torch.get_device: _get_device,
    torch.Tensor.pin_memory: lambda calls, func, args, kwargs: args[0],
    torch.Tensor.cpu: lambda calls, func, args, kwargs: calls.gpus.move(args[0], CPU),
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _numpy,
    torch.Tensor.__repr__: _shown,
    torch.Tensor.__deepcopy__: _deepcopied,
    torch.Tensor.copy_: _copied_into,
    torch.Tensor.__setitem__: _copied_into,
    torch.Tensor.backward: _backward,
    parse_to: _read,
}
"""What is not simply carried out where its tensors are."""
