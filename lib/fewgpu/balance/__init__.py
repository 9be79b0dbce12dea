"""How many layers each stage gets: profile the layers, then cut between them.

    from fewgpu import GPipe
    from fewgpu.balance import balance_by_time

    balance = balance_by_time(2, model, torch.rand(32, 1, 28, 28))
    pipeline = GPipe(model, balance, chunks=8)

`profile` tells what layers cost, `cut` where to cut. The two functions here put them together, with
the signatures of torchgpipe 0.0.7 (https://github.com/kakaobrain/torchgpipe).
"""
from numbers import Integral
from typing import Any

from torch import nn

from fewgpu.balance.cut import check_partitions, cut, cut_by_variance, cut_mirrored
from fewgpu.balance.profile import LayerCost, profile, weigh
from fewgpu.balance.sandbox import AnyDevice, check_module, check_sample
from fewgpu.microbatch import scatter

__all__ = ['LayerCost', 'balance_by_size', 'balance_by_time', 'cut', 'cut_by_variance', 'cut_mirrored',
           'profile']


def balance_by_time(partitions: int, module: nn.Sequential, sample: Any, *, timeout: float = 1.0,
                    device: AnyDevice | None = None) -> list[int]:
    """Balances by the time of forward plus backward: the slowest stage is as fast as it can be.

    Args:
        partitions: number of stages.
        module: the layers.
        sample: an input, on any device. Take as many rows as a micro-batch has: small batches spend
            their time differently from large ones.
        timeout: seconds to go on measuring (see `profile`).
        device: where to measure; by default the current GPU if there is one, else the CPU.

    Returns:
        The number of layers of each stage, for GPipe's `balance`.

    Raises:
        TypeError, ValueError: as `cut` and `profile`, one sentence with the remedy.
    """
    check_module(module)
    check_partitions(len(module), partitions)
    costs = profile(module, sample, timeout=timeout, device=device)
    return cut([cost.forward + cost.backward for cost in costs], partitions)


def balance_by_size(partitions: int, module: nn.Sequential, input: Any, *, chunks: int = 1,
                    param_scale: float = 2.0, device: AnyDevice | None = None) -> list[int]:
    """Balances by memory: the fullest stage is as empty as it can be.

    A layer costs the activations it saves for the backward of one micro-batch (the largest: rows /
    chunks, rounded up) plus param_scale times its parameters. param_scale counts the copies that
    training keeps of a parameter: itself, its gradient, and what the optimizer remembers: 2 for
    plain SGD, 3 with momentum, 4 for Adam, 5 for Adam with amsgrad.

    Activations are counted in the same way on CPUs and GPUs, by noting what autograd saves: each
    storage once, and not again in the next layer (`LayerCost.saved_bytes`). Both give the same
    figure, but for what a backend's own kernels save. torchgpipe, which works on GPUs only, reads
    the allocator (it rounds up) before and after a forward of the first row and multiplies by the
    rows; and it counts an activation in the layer that makes it, where this function counts it in
    the layer that saves it, since that one's stage holds it. Not counted, because it depends on the
    cut: the inputs of all micro-batches that a stage stashes when it recomputes.

    Args:
        partitions: number of stages.
        module: the layers.
        input: a mini-batch as large as in training, on any device.
        chunks: number of micro-batches.
        param_scale: copies of each parameter, frozen ones too; 0 balances activations alone.
        device: where to measure; by default the current GPU if there is one, else the CPU.

    Returns:
        The number of layers of each stage, for GPipe's `balance`.

    Raises:
        TypeError, ValueError: as `cut` and `profile`, or chunks < 1, or a negative param_scale.
    """
    check_module(module)
    check_partitions(len(module), partitions)
    check_sample(input)
    if not (isinstance(chunks, Integral) and chunks >= 1):
        raise ValueError(f'chunks is {chunks!r}: ask for at least one micro-batch')
    if not param_scale >= 0:
        raise ValueError(f'param_scale is {param_scale}: give the copies kept of each parameter')
    costs = weigh(module, scatter(input, chunks)[0], device=device)   # the largest comes first
    return cut([cost.saved_bytes + cost.parameter_bytes * param_scale for cost in costs], partitions)
