"""Copies between a device and the host: what travels for who keeps state in the host's memory.

    sent                  a thread beside the device waits until the copy is there, on a stream of its own; it may be
                          used on any stream then, and is let go of when no kernel uses it any more (fewgpu.spill)
    to_device, to_host    the streams of the caller wait for the copy, and go on meanwhile (fewgpu.offload)

Two ways, for two kinds of callers. In fewgpu.spill a shard is loaded beside a device, in a thread that does not know
who will compute with it, and on which stream: so the copy is there when the call returns. In fewgpu.offload whoever
copies is on the streams of the step that computes, which wait by themselves, and nobody else has to.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fewgpu.device import Device
from fewgpu.transport.copies import Parcel

FROM_HOST, TO_HOST = -1, -2   # the two directions of a device's link, which do not hold each other up


def to_device(tensors: Any, device: Device) -> Any:
    """Copies on the device, once they have passed its link."""
    start = time.perf_counter()
    with device.counting():
        copies = Parcel.of(tensors).copy_to(device.torch)
    if device.link is not None:
        device.link.wait(tensors, start, FROM_HOST)
    return copies


def to_host(parcel: Parcel, device: Device) -> Any:
    """Copies on the host of what the device has packed."""
    copies = parcel.copy_to(torch.device('cpu'))
    if device.link is not None:
        device.link.wait(parcel.value, parcel.sent, TO_HOST)
    return copies


def on_host(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returns. It is made in a thread of its own, for what the thread of a device allocates
    counts as the device's."""
    with ThreadPoolExecutor(1, 'fewgpu host') as host:
        return host.submit(call, *arguments).result()


def sent(value: Any, source: Device | None, target: Device | None) -> Any:
    """A copy of all tensors on another device (None: the host), when its link has brought it.

    Between device and host it is the device's link. Raises torch.OutOfMemoryError if it does not fit.
    """
    start = time.perf_counter()
    where = torch.device('cpu') if target is None else target.torch
    with _beside(where):
        copy = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to(
            where, copy=True, non_blocking=where.type == 'cuda').requires_grad_(tensor.requires_grad), value)
    if target is not None and target.ledger:
        target.ledger.adopt(leaf for leaf in pytree.tree_leaves(copy) if isinstance(leaf, torch.Tensor))
    carrier = target or source
    if carrier is not None and carrier.link:
        key = TO_HOST if target is None else FROM_HOST if source is None else source.index
        carrier.link.wait(copy, start, key)
    return copy


@contextlib.contextmanager
def _beside(where: torch.device) -> Iterator[None]:
    """Inside, copies to a GPU use a stream of their own, beside its kernels; they are done at the end."""
    if where.type != 'cuda':
        yield
        return
    stream = _copies(where)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@functools.cache
def _copies(gpu: torch.device) -> 'torch.cuda.Stream':
    return torch.cuda.Stream(gpu)   # one for all time: memory is cached by stream
