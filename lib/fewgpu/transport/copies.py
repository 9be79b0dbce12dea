"""A device computes on its own copy of what it receives.

So a stage may work in place, a device's memory is its own, and a transfer between GPUs overlaps
with the computation of both.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree

_copy_streams: dict[torch.device, 'torch.cuda.Stream'] = {}


def copy_to(value: Any, device: torch.device) -> Any:
    """A copy of all tensors of `value` on `device`; each keeps its `requires_grad`.

    On GPUs it is ordered after what the current stream of the source holds, and before what the
    current stream of `device` will hold.
    """
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _copy(tensor, device), value)


def _copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    source = tensor.detach()
    if source.device == device:
        copy = source.clone()
    elif 'cuda' not in (source.device.type, device.type):
        copy = source.to(device)
    else:
        copy = _copy_aside(source, device)
    return copy.requires_grad_(tensor.requires_grad)


def _copy_aside(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Between a GPU and another, or from or to the host, on streams made for copies: torch copies
    on the source's current stream, where it would wait behind computation."""
    gpus = [place for place in (source.device, device) if place.type == 'cuda']
    aside = [_copy_stream(gpu) for gpu in gpus]
    for gpu, stream in zip(gpus, aside):
        stream.wait_stream(torch.cuda.current_stream(gpu))
    before = [torch.cuda.current_stream(gpu) for gpu in gpus]
    for stream in aside:
        torch.cuda.set_stream(stream)
    try:
        copy = source.to(device, non_blocking=device.type == 'cuda')
    finally:
        for stream in before:
            torch.cuda.set_stream(stream)
    if source.device.type == 'cuda':
        source.record_stream(aside[0])        # not to be reused before it is copied
    if device.type == 'cuda':
        before[-1].wait_stream(aside[-1])
        copy.record_stream(before[-1])
    return copy


def _copy_stream(gpu: torch.device) -> 'torch.cuda.Stream':
    if gpu not in _copy_streams:
        _copy_streams[gpu] = torch.cuda.Stream(gpu)
    return _copy_streams[gpu]
