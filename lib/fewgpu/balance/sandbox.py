"""Where layers are tried out: each is copied, and the model never notices.

A layer is never run itself. Its copy goes to the device, runs there in training mode and is dropped
before the next layer's turn: a model larger than the device can be profiled, and the model's
parameters, gradients, buffers, hooks and training flags stay as they are.
"""
import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fewgpu.device import Device, one_thread
from fewgpu.skip import Load, Save, own_skips

AnyDevice = Device | torch.device | str | int


def check_module(module: nn.Sequential) -> None:
    """Raises TypeError unless module is an nn.Sequential."""
    if not isinstance(module, nn.Sequential):
        raise TypeError(f'module must be an nn.Sequential, not {type(module).__name__}: list its layers '
                        'in order in nn.Sequential(...), so that it can be cut between them')


def check_sample(sample: Any) -> None:
    """Raises TypeError unless there is a tensor in sample."""
    if not tensors(sample):
        raise TypeError('the sample must be a tensor, or tuples, lists and dicts with tensors in them, '
                        f'not {type(sample).__name__} without any: pass an input of the module')


@contextmanager
def sandbox(device: AnyDevice | None) -> Iterator[torch.device]:
    """Gradients on, one thread on the CPU; random streams and threads are put back at the end.

    Gives the device to run on: for None the current GPU if there is one, else the CPU. Raises
    ValueError for a device that is neither a CPU nor a GPU that is there.
    """
    device = _resolve(device)
    gpus = [device.index] if device.type == 'cuda' else []
    drawn = random.getstate()
    try:
        with (nullcontext() if gpus else one_thread(), torch.cuda.device(gpus[0] if gpus else -1),
              torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=gpus)):
            yield device   # (torch.cuda.device(-1) is no GPU and does nothing)
    finally:
        random.setstate(drawn)


def _resolve(device: AnyDevice | None) -> torch.device:
    if device is None:
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    device = device.torch if isinstance(device, Device) else torch.device(device)
    if device.type == 'cuda' and torch.cuda.is_available():
        index = torch.cuda.current_device() if device.index is None else device.index
        if index < torch.cuda.device_count():
            return torch.device('cuda', index)
    if device.type != 'cpu':
        raise ValueError(f"cannot profile on device '{device}': PyTorch sees "
                         f"{torch.cuda.device_count()} GPUs here; name one of them, or pass device='cpu'")
    return device


def try_layers(module: nn.Sequential, sample: Any, device: torch.device,
               visit: Callable[[nn.Module, Any], tuple[Any, Any]]) -> list[Any]:
    """Sends the sample through copies of all layers, one after the other.

    Returns what `visit(layer, value) -> (finding, output)` found in each. A layer that loads a long skip
    gets it beside its value, from the layer that saved it.
    """
    value = tree_map_only(Tensor, lambda x: x.detach().to(device).requires_grad_(x.requires_grad),
                          sample)
    findings, skips = [], {}
    for index, layer in enumerate(module):
        if isinstance(layer, Save):
            skips[layer.name] = value
        try:
            copied = _copy(layer, device)
            if isinstance(layer, Load) and layer.name in skips:   # (if not, it says so itself)
                copied, value = _Merge(copied), (value, skips[layer.name])
            with own_skips():
                finding, value = visit(copied, value)
        except Exception as error:
            error.add_note(f'while profiling layer {index} ({type(layer).__name__})')
            raise
        finally:
            torch.clear_autocast_cache()  # it would keep the copy's weights, and the graph behind them
        findings.append(finding)
    return findings


class _Merge(nn.Module):
    """A layer that loads a skip, as a function of (value, skip)."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self.load = load

    def forward(self, both: tuple[Any, Tensor]) -> Any:
        return self.load.merge(*both)


def _copy(layer: nn.Module, device: torch.device) -> nn.Module:
    # Tensors with a history, such as the weight kept by the older weight_norm, refuse deepcopy.
    computed = [x for part in layer.modules() for x in (*vars(part).values(), *part._buffers.values())
                if isinstance(x, Tensor) and not x.is_leaf]
    return copy.deepcopy(layer, {id(x): x.detach().clone() for x in computed}).to(device).train()


def enter(value: Any) -> Any:
    """Clones with a history: a layer may change them in place, as it may not change leaves."""
    return tree_map_only(Tensor, lambda x: x.detach().requires_grad_(x.requires_grad).clone(), value)


def leave(output: Any) -> Any:
    """The same values without the graph behind them."""
    return tree_map_only(Tensor, lambda y: y.detach().requires_grad_(y.requires_grad), output)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a nesting of tuples, lists and dicts, in order."""
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]
