"""Gradients side by side in flat tensors: few large messages instead of many small ones.

A message costs its latency, however small it is: ResNet-18 has 62 parameters, half of them of at
most 512 numbers, but fits into two buckets of 25 MB. (Li et al., PyTorch Distributed, VLDB 2020,
section 3.2.2; from memory)
"""

import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from fewgpu.collectives import Group, all_reduce


class Bucket:
    """Room for some tensors of one dtype and device: `flat`, and `views` of it in their shapes."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sizes = [tensor.numel() for tensor in tensors]
        self.flat = torch.zeros(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
        self.views = [part.view(tensor.shape)
                      for part, tensor in zip(self.flat.split(sizes), tensors)]

    @torch.no_grad()
    def fill(self, values: Iterable[torch.Tensor | None], weight: float) -> None:
        """With weight x value, zeros for None. A weight of 0 makes zeros also of inf and nan."""
        if weight == 0:
            self.flat.zero_()
            return
        for view, value in zip(self.views, values):
            if value is None:
                view.zero_()
            else:
                torch.mul(value, weight, out=view)


def cut(tensors: Sequence[torch.Tensor], megabytes: float) -> list[list[int]]:
    """Which tensors share a bucket: their indices, in order; at most `megabytes` (of 2^20 bytes) a
    bucket, unless one tensor is larger, and one dtype and device."""
    buckets: list[list[int]] = []
    alike, filled = None, 0.0
    for index, tensor in enumerate(tensors):
        size = tensor.numel() * tensor.element_size() / 2**20
        if alike != (tensor.dtype, tensor.device) or filled + size > megabytes:
            buckets.append([])
            alike, filled = (tensor.dtype, tensor.device), 0.0
        buckets[-1].append(index)
        filled += size
    return buckets


def fingerprint(state: Iterable[tuple[str, torch.Tensor]]) -> int:
    """The same number for the same names, shapes and dtypes in the same order."""
    return zlib.crc32(repr([(name, *tensor.shape, tensor.dtype) for name, tensor in state]).encode())


@torch.no_grad()
def average(tensors: Sequence[torch.Tensor], group: Group, weight: float | None = None, *,
            bucket_mb: float = 25.0) -> None:
    """Replace the tensors by their weighted means over the ranks, bucket by bucket.

    `weight` is this rank's share, by default 1/N; the shares of all ranks add up to 1.
    """
    for indices in cut(tensors, bucket_mb):
        chosen = [tensors[index] for index in indices]
        bucket = Bucket(chosen)
        bucket.fill(chosen, 1 / group.size if weight is None else weight)
        all_reduce(bucket.flat, group)
        torch._foreach_copy_(chosen, bucket.views)


@torch.no_grad()
def average_gradients(gradients: dict[nn.Parameter, torch.Tensor | None], group: Group,
                      weight: float | None = None, *, bucket_mb: float = 25.0
                      ) -> dict[nn.Parameter, torch.Tensor | None]:
    """The weighted means over the ranks of the parameters' gradients (see `average`).

    A parameter that has no gradient on this rank counts as zeros, if it has one on another; where
    no rank has one it stays None. All ranks pass the same parameters in the same order.
    """
    if not gradients:
        return {}
    used = torch.tensor([gradient is not None for gradient in gradients.values()],
                        dtype=torch.uint8, device=next(iter(gradients)).device)
    all_reduce(used, group, 'max')
    averaged = {parameter: torch.zeros_like(parameter) if is_used and gradient is None else gradient
                for (parameter, gradient), is_used in zip(gradients.items(), used.tolist())}
    average([gradient for gradient in averaged.values() if gradient is not None], group, weight,
            bucket_mb=bucket_mb)
    return averaged


@torch.no_grad()
def average_one_by_one(parameters: Iterable[nn.Parameter], group: Group) -> None:
    """The naive way, to compare with: a message round a parameter, after the backward."""
    for parameter in parameters:
        if parameter.grad is not None:
            all_reduce(parameter.grad, group, 'mean')
