"""A device computes on its own copy of what it receives.

So a stage may work in place, a device's memory is its own, and a transfer between GPUs overlaps
with the computation of both.
"""

import time
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

_copy_streams: dict[torch.device, 'torch.cuda.Stream'] = {}


class Parcel(NamedTuple):
    """What a message carries: a nesting of tensors, and for each GPU that holds some of them the
    event after which they are there. (The sender goes on enqueueing kernels at once: a receiver
    that waited for all that its stream holds by then would wait for the next micro-batch, too.)
    What came from another process, on the host, is the receiver's `own` already."""

    value: Any
    ready: dict[torch.device, 'torch.cuda.Event']
    sent: float = 0.0   #: when, on the clock of time.perf_counter
    own: bool = False

    @classmethod
    def of(cls, value: Any) -> 'Parcel':
        """To be called where the value was computed, before anything else is."""
        gpus = {leaf.device for leaf in pytree.tree_leaves(value)
                if isinstance(leaf, torch.Tensor) and leaf.device.type == 'cuda'}
        return cls(value, {gpu: torch.cuda.current_stream(gpu).record_event() for gpu in gpus},
                   time.perf_counter())

    def copy_to(self, device: torch.device) -> Any:
        """A copy of all tensors on `device`, ready for its current stream; each keeps its
        `requires_grad`."""
        if self.own and device.type == 'cpu':
            return self.value
        return pytree.tree_map_only(torch.Tensor, lambda t: self._copy(t, device), self.value)

    def _copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        source = tensor.detach()
        if source.device == device:
            copy = source.clone()   # all stages on a GPU use the same stream
        elif 'cuda' not in (source.device.type, device.type):
            copy = source.to(device)
        else:
            copy = self._copy_aside(source, device)
        return copy.requires_grad_(tensor.requires_grad)

    def _copy_aside(self, source: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Between a GPU and another, or from or to the host, on streams made for copies: torch
        copies on the source's current stream, where it would wait behind computation."""
        gpus = [place for place in (source.device, device) if place.type == 'cuda']
        aside = [_copy_stream(gpu) for gpu in gpus]
        before = [torch.cuda.current_stream(gpu) for gpu in gpus]
        if source.device in self.ready:
            aside[0].wait_event(self.ready[source.device])
        for stream in aside:
            torch.cuda.set_stream(stream)
        try:   # from the host it blocks: the caller may change what it passed in afterwards
            copy = source.to(device)
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
