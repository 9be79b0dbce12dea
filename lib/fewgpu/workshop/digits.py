"""A small network and small mini-batches of MNIST, for demonstrations that train."""

import torch
from torch import nn

from fewgpu.data import SIDE, load, subset

Batch = tuple[torch.Tensor, torch.Tensor]


def network(stages: int, *, width: int = 64, seed: int = 0) -> nn.Sequential:
    """A layer a stage, from rows of 784 pixels to 10 digits; the same for the same seed."""
    widths = [SIDE * SIDE, *[width] * (stages - 1)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(widths, widths[1:])]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def mini_batches(count: int, rows: int, *, seed: int = 0) -> list[Batch]:
    """Of the training digits, drawn without regard to which came before."""
    images, labels = subset(load('train'), 8192, seed=seed).tensors
    numbers = torch.Generator().manual_seed(seed)
    picks = [torch.randint(len(images), (rows,), generator=numbers) for _ in range(count)]
    return [(images[pick].flatten(1), labels[pick]) for pick in picks]


def unseen_digits(samples: int = 2000) -> Batch:
    """Digits that no training has seen."""
    images, labels = subset(load('test'), samples, seed=0).tensors
    return images.flatten(1), labels


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    """The share of a batch's rows whose digit the model names."""
    x, y = batch
    return (model(x).argmax(1) == y).float().mean().item()


def smooth(losses: list[float], window: int = 20) -> list[float]:
    """The mean of each loss and those before it, `window` in all."""
    return [sum(losses[max(0, i - window + 1):i + 1]) / min(window, i + 1) for i in range(len(losses))]
