"""What the tests on a GPU share: a small image network, and how it is cut over one GPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fewgpu import GPipe, get_devices

GPU = torch.device('cuda', 0)


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """No TF32, and always the same kernels. To be imported by a module of tests."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    settings = [(cudnn, 'deterministic', True), (cudnn, 'benchmark', False),
                (cudnn, 'allow_tf32', False), (matmul, 'allow_tf32', False)]
    before = [getattr(module, name) for module, name, _ in settings]
    for module, name, value in settings:
        setattr(module, name, value)
    yield
    for (module, name, _), value in zip(settings, before):
        setattr(module, name, value)


def layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True)),
                         nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True),
                         nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 10))).to(dtype)


def images(rows: int = 10, dtype: torch.dtype = torch.float64, **options: Any) -> torch.Tensor:
    return torch.randn(rows, 3, 6, 6, dtype=dtype, **options)


def on_gpu(module: nn.Sequential, balance: list[int], **options: Any) -> GPipe:
    return GPipe(module, balance, devices=get_devices(len(balance), kind=GPU.type), **options)


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output, then the gradients of the parameters and of x, all on the CPU."""
    output = model(x)
    found = torch.autograd.grad(output.square().sum(), [*model.parameters(), x])
    return [tensor.detach().cpu() for tensor in (output, *found)]
