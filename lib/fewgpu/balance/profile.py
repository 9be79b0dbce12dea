"""What each layer of an nn.Sequential costs: seconds of forward and backward, bytes of each kind."""
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fewgpu.balance.sandbox import (AnyDevice, check_module, check_sample, enter, leave, sandbox,
                                    tensors, try_layers)


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs in training: seconds, and bytes for the rows of the sample.

    forward, backward: seconds of the fastest round (noise only ever adds time); backward is 0.0
        where no gradient flows.
    output_bytes: the tensors the layer returns, which cross to the next device if a cut follows.
    saved_bytes: activations the forward leaves behind for the backward, each storage once; none
        that are parameters or buffers, and none that an earlier layer has left behind already. So
        the layers' figures add up to the model's.
    parameter_bytes: its parameters (one shared by two layers counts in both), without gradients.
    """

    forward: float
    backward: float
    output_bytes: int
    saved_bytes: int
    parameter_bytes: int


def profile(module: nn.Sequential, sample: Any, *, timeout: float = 1.0,
            device: AnyDevice | None = None) -> list[LayerCost]:
    """Measures what each layer costs in training, and leaves everything as it was.

    One round through all layers warms up and counts bytes. At least two more are timed, and further
    ones until `timeout` has passed: layers take turns, so that a busy moment of the machine does
    not fall on one layer alone. Every backward adds to gradients that are there already, as in
    all micro-batches but the first. Existing gradients, layers that work in place or draw random
    numbers, frozen layers and layers in eval mode (profiled in training mode) are all welcome; the
    caller's autocast applies.

    Args:
        module: the layers, on any device.
        sample: their input: a tensor, or tuples, lists and dicts with tensors in them, of any
            number of rows; gradients flow to the tensors that require them.
        timeout: seconds for the timed rounds. The warm-up and two timed rounds are always run.
        device: where to run; by default the current GPU if there is one, else the CPU. On the CPU
            a layer runs on one thread, as on a virtual device. (The number of threads is a setting
            of the process while the profile lasts.)

    Returns:
        One LayerCost a layer.

    Raises:
        TypeError: module is not an nn.Sequential, or there is no tensor in the sample.
        ValueError: device is neither a CPU nor a GPU that is there.
        Whatever a layer raises, with a note that says which layer.
    """
    check_module(module)
    check_sample(sample)
    with sandbox(device) as device:
        sizes = try_layers(module, sample, device, _Scales(backward=True))
        rounds = []
        begun = time.perf_counter()
        while len(rounds) < 2 or time.perf_counter() - begun < timeout:
            rounds.append(try_layers(module, sample, device, partial(_clock, device)))
    seconds = [map(min, zip(*times)) for times in zip(*rounds)]
    return [LayerCost(*fastest, *size) for fastest, size in zip(seconds, sizes)]


def weigh(module: nn.Sequential, sample: Any, *, device: AnyDevice | None = None) -> list[LayerCost]:
    """The bytes of `profile`, from one forward a layer; seconds are 0.0. Arguments, errors: as there."""
    check_module(module)
    check_sample(sample)
    with sandbox(device) as device:
        sizes = try_layers(module, sample, device, _Scales(backward=False))
    return [LayerCost(0.0, 0.0, *size) for size in sizes]


def _clock(device: torch.device, layer: nn.Module, value: Any) -> tuple[tuple[float, float], Any]:
    """One timed forward and backward: (seconds, seconds), output."""
    value = enter(value)
    begun = _now(device)
    output = layer(value)
    forward = _now(device) - begun
    for parameter in layer.parameters():
        if parameter.requires_grad:
            parameter.grad = parameter.detach().clone()
    backward = _backward(output, partial(_now, device))
    return (forward, backward), leave(output)


def _now(device: torch.device) -> float:
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _backward(output: Any, now: Callable[[], float] = time.perf_counter) -> float:
    """Sends gradients of one back through the graph; seconds, 0.0 if there is no graph."""
    roots = [y for y in tensors(output) if y.requires_grad]
    if not roots:
        return 0.0
    gradients = [torch.ones_like(y) for y in roots]
    begun = now()
    torch.autograd.backward(roots, gradients)
    return now() - begun


class _Saved:
    """Holds what autograd saved; lives as long as the graph does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Scales:
    """Weighs one layer after the other: (output, saved and parameter bytes), output."""

    def __init__(self, backward: bool) -> None:
        self.backward = backward
        self.counted: set[int] = set()   # storages seen in the layer before, addresses

    def __call__(self, layer: nn.Module, value: Any) -> tuple[tuple[int, int, int], Any]:
        before, value = value, enter(value)
        known = {_address(new) for old, new in zip(tensors(before), tensors(value))
                 if _address(old) in self.counted}
        saved: weakref.WeakSet[_Saved] = weakref.WeakSet()

        def pack(tensor: Tensor) -> _Saved:
            box = _Saved(tensor.detach())   # with its history, a saved output would hold its own graph
            saved.add(box)
            return box

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
            output = layer(value)
        known |= {_address(x) for x in (*layer.parameters(), *layer.buffers())}
        kept = {_address(box.tensor): box.tensor.untyped_storage().nbytes()
                for box in saved if _address(box.tensor)}
        self.counted = known | kept.keys()
        weight = (sum(map(_nbytes, tensors(output))),
                  sum(nbytes for address, nbytes in kept.items() if address not in known),
                  sum(map(_nbytes, layer.parameters())))
        if self.backward:
            _backward(output)
        return weight, leave(output)


def _address(tensor: Tensor) -> int:
    """Where a tensor's storage begins; 0 for sparse tensors, which have none and are not counted."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size() if tensor.layout is torch.strided else 0
