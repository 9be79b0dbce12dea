"""From a sequence of layers and a balance to stages, each on its device."""

import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fewgpu.device import Device, choose_devices


_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')


def verify_module(module: nn.Sequential) -> None:
    """Raises TypeError if `module` is no nn.Sequential, ValueError if it has layers or parameters
    in two places."""
    if not isinstance(module, nn.Sequential):
        raise TypeError('module must be nn.Sequential to be partitioned')
    if type(module).forward is not nn.Sequential.forward or any(
            getattr(module, hooks) for hooks in _HOOKS):
        raise TypeError('the module does more than to apply its layers in order (a forward or hooks of '
                        'its own), which a pipeline would leave out: put that into a layer')
    if module._parameters or module._buffers:
        raise ValueError('the module has parameters or buffers of its own, beside its layers: put them '
                         'into a layer')
    if len(list(module.named_children())) != len(module):
        raise ValueError('module with duplicate children is not supported: make each layer its own')
    if len(list(module.parameters())) != sum(len(list(layer.parameters())) for layer in module):
        raise ValueError('module with duplicate parameters in distinct children is not supported: '
                         'put the layers that share them into one layer')
    if len(list(module.buffers())) != sum(len(list(layer.buffers())) for layer in module):
        raise ValueError('two layers share a buffer, and may be on different devices: put the layers '
                         'that share it into one layer')
    if any(map(nn.parameter.is_lazy, _tensors(module))):
        raise ValueError('a lazy layer does not know its parameters yet: run the module once on a '
                         'few rows, then make the pipeline')


def verify_has_layers(module: nn.Sequential) -> None:
    """As `verify_module`, and ValueError for one without layers."""
    verify_module(module)
    if not len(module):
        raise ValueError('there is nothing to train: the nn.Sequential has no layer')


def verify_balance(module: nn.Sequential, balance: Iterable[int] | None) -> list[int]:
    """The balance as a list. Raises ValueError, which recommends `fewgpu.balance`, if it does not
    fit the module; TypeError for what is no list of whole numbers."""
    if balance is None:
        raise ValueError(_recommend('balance is required'))
    if not isinstance(balance, Iterable):
        raise TypeError(_recommend(f'balance is a list, how many layers each stage has, not {balance!r}'))
    balance = [operator.index(layers) for layers in balance]
    if any(layers <= 0 for layers in balance):
        raise ValueError(_recommend(
            f'all balance numbers must be positive integer (balance: {balance})'))
    if sum(balance) != len(module):
        raise ValueError(_recommend(
            f'module and sum of balance have different length '
            f'(module: {len(module)}, sum of balance: {sum(balance)})'))
    return balance


def split(module: nn.Sequential, balance: list[int]) -> nn.ModuleList:
    """One nn.Sequential a stage, of the same layers under the same names."""
    layers = iter(module.named_children())
    return nn.ModuleList(nn.Sequential(OrderedDict(next(layers) for _ in range(count)))
                         for count in balance)


def device_of(device: Any) -> Device:
    """That of an engine which uses one: a Device, or what Device takes; None: the first GPU, or a virtual CPU device.
    Raises TypeError for a list."""
    if isinstance(device, (list, tuple)):
        raise TypeError(f'one device is used here, not a list: {device!r}')
    return device if isinstance(device, Device) else choose_devices(1)[0] if device is None else Device(device)


def devices_of(devices: Iterable[Any]) -> list[Device]:
    """Those of an engine which uses several, each a Device or what Device takes."""
    return [device if isinstance(device, Device) else Device(device, index=index)
            for index, device in enumerate(devices)]


def verify_devices(devices: Any, what: str = 'one a stage') -> None:
    """Raises TypeError for a number or a name."""
    if isinstance(devices, (int, str, Device, torch.device)):
        raise TypeError(f'devices are a list, {what}, not {devices!r}: '
                        f"get_devices(n), or ['cpu'] * n")


def place(partitions: nn.ModuleList, devices: Iterable[Any] | None) -> list[Device]:
    """Move every partition to its device, in order; the devices that are used.

    Raises IndexError if there are fewer devices than partitions, ValueError if one is used twice.
    """
    verify_devices(devices)
    if devices is None:
        chosen = choose_devices(len(partitions))
    else:
        chosen = devices_of(devices)[:len(partitions)]
    if len(chosen) < len(partitions):
        raise IndexError(f'too few devices to hold given partitions '
                         f'(devices: {len(chosen)}, partitions: {len(partitions)})')
    if len(set(chosen)) < len(chosen):
        raise ValueError('two stages cannot run in the worker of one Device: give each stage a '
                         'Device of its own (several may be on the same GPU)')
    for partition, device in zip(partitions, chosen):
        if any(tensor.device != device.torch for tensor in _tensors(partition)):
            partition.to(device.torch)
    return chosen


def turn_of(layers: nn.Sequential) -> threading.RLock:
    """The lock of these layers: threads that call the model at once, or two models of the same
    layers, take turns."""
    first = next(iter(layers), None)
    return threading.RLock() if first is None else _turns.setdefault(first, threading.RLock())


_turns: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _recommend(message: str) -> str:
    return f"""{message}

While a model still changes, let its balance be measured:

    from fewgpu.balance import balance_by_time

    balance = balance_by_time(stages, model, sample)   # a mini-batch of any size
    model = GPipe(model, balance, ...)   # or Pipeline(model, balance, ...)
"""
