"""Ranks that train one model together start from the same numbers, and (parts of one model) are given the same ones."""

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.buckets import fingerprint
from fewgpu.collectives import all_gather, broadcast
from fewgpu.group import Group

State = Sequence[tuple[str, torch.Tensor]]
_DIMS = 6   # how many sizes of a tensor are told


def start_alike(module: nn.Module, group: Group) -> None:
    """All ranks of the group take the parameters and buffers of its first one; all call it.

    Raises ValueError, on every rank, if their modules differ.
    """
    take_first([*module.named_parameters(), *module.named_buffers()], group)


@torch.no_grad()
def take_first(state: State, group: Group) -> None:
    """`start_alike`, for some tensors of a module and their names."""
    verify_same(state, group)
    for _, tensor in state:
        broadcast(tensor.detach(), group)


def verify_same(state: State, group: Group) -> None:
    """Raises ValueError, on every rank, if names, shapes or dtypes differ, or what is trained; all call it."""
    facts = [sum(tensor.requires_grad for _, tensor in state), len(state), sum(tensor.numel() for _, tensor in state),
             fingerprint(state)]
    every = of_all(facts, group)
    if any(theirs != facts for theirs in every):
        found = ', '.join(f'rank {r} {theirs}' for r, theirs in enumerate(every))
        raise ValueError(f'the ranks have different modules (learned parameters, tensors, numbers, a checksum of '
                         f'names and shapes): {found}: every rank makes the same model, and the same cut')


def verify_given_same(what: str, tensor: torch.Tensor, group: Group) -> None:
    """Raises ValueError, on every rank, if they were given tensors of other shapes, or other whole numbers.

    All call it. It costs one message of 64 bytes a rank, less than the latency of an all-reduce. Tokens
    and targets are compared by a checksum, where they are in the host's memory (a GPU would have to be waited for).
    Floating-point numbers are not: what ranks have computed alike may be rounded otherwise.
    """
    mine = [tensor.dim(), *tensor.shape[:_DIMS], *[0] * (_DIMS - tensor.dim()), checksum(tensor)]
    every = of_all(mine, group)
    if any(theirs != mine for theirs in every):
        shapes = [' x '.join(map(str, dims[:dim])) or 'one number' for dim, *dims, _ in every]
        told = ', '.join(f'rank {r} {shape}' for r, shape in enumerate(shapes)) if len({*shapes}) > 1 else (
            f'{shapes[0]} each, but not the same numbers')
        raise ValueError(f'the ranks of a tensor-parallel layer were given different {what}: {told}: give all of them '
                         f'the same rows')


def checksum(values: Any) -> int:
    """The same number for the same whole numbers in a nesting of tensors; others, and those on a GPU, do not count."""
    summed = 0
    for tensor in pytree.tree_leaves(values):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == 'cpu' and not (
                tensor.is_floating_point() or tensor.is_complex()):
            summed = zlib.crc32(tensor.detach().numpy().tobytes(), summed)   # in order, whatever the strides
    return summed


def of_all(numbers: Sequence[int], group: Group) -> list[list[int]]:
    """Those of every rank. They go by way of the host, or the current GPU where NCCL is all there is."""
    device = 'cpu' if 'gloo' in dist.get_backend_config(group.process_group) else 'cuda'
    every = [torch.tensor(numbers, device=device) for _ in range(group.size)]
    all_gather(every, group)
    return [theirs.tolist() for theirs in every]
