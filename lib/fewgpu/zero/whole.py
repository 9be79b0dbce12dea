"""What an update over shards needs of all ranks: the norm of all gradients, and whether one overflowed."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from fewgpu.collectives import all_reduce
from fewgpu.maker import verify_made
from fewgpu.zero.shards import Line

_NOT_ELEMENTWISE = ('LBFGS', 'Adafactor', 'Muon', 'SparseAdam', 'Lamb', 'LAMB', 'Lars', 'LARS')


def made(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
          parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer. Raises TypeError if it is none, or needs whole parameters."""
    optimizer = make(parameters)
    if (kind := type(optimizer).__name__) in _NOT_ELEMENTWISE:
        raise TypeError(f'{kind} looks at more than one number of a parameter at a time, and a rank has '
                        f'a shard only: choose an optimizer such as Adam, AdamW or SGD')
    return verify_made(optimizer)


@torch.no_grad()
def clip(gradients: Sequence[torch.Tensor], max_norm: float, line: Line) -> torch.Tensor:
    """Scale the gradients, of which every rank has a part; returns the norm of all before."""
    squares = torch.stack([gradient.norm() ** 2 for gradient in gradients]).sum()
    line.do(all_reduce, squares, line.notes)
    norm = squares.sqrt()
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


@torch.no_grad()
def spread_overflow(gradients: Sequence[torch.Tensor], line: Line) -> None:
    """What is not finite on one rank is so on all: each asks its own scaler."""
    bad = torch.stack([~gradient.isfinite().all() for gradient in gradients]).any().to(torch.uint8)
    line.do(all_reduce, bad, line.notes, 'max')
    if bad:
        next(gradient for gradient in gradients if gradient.numel())[0] = torch.inf
