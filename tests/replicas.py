"""What the tests of data parallelism compare: little networks, rows of a rank, gradients."""

import random

import torch
import torch.nn.functional as F
from torch import nn


def network(seed: int, *, norm: bool = False) -> nn.Sequential:
    """A random little network in float64, with layers of any sizes."""
    draw = random.Random(seed)
    widths = [5, *(draw.choice([1, 3, 16, 40]) for _ in range(draw.randint(1, 4))), 3]
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for wide, narrow in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, narrow), *([nn.BatchNorm1d(narrow)] if norm else []), nn.Tanh()]
    return nn.Sequential(*layers).double()


def rows(seed: int, count: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(1000 * seed + rank)
    return (torch.randn(count, 5, generator=numbers, dtype=torch.float64),
            torch.randn(count, 3, generator=numbers, dtype=torch.float64))


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def equal(found: list, expected: list, why: str = '') -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert (one is None) == (other is None), why
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13, msg=lambda m: f'{why}: {m}')


def backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor, share: float = 1.0) -> None:
    (F.mse_loss(model(x), y) * share).backward()
