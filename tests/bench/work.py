"""What all contestants of the pipeline benchmark do in a step, and what they have to offer."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

CHECKPOINTS = ('never', 'except_last')   # without recompute and with it
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Work:
    """One mini-batch, in `chunks` micro-batches of equal size: forward, loss and backward.

    Raises ValueError if the sizes cannot be equal.
    """

    model: nn.Sequential
    inputs: torch.Tensor    # batch x channels x height x width
    targets: torch.Tensor   # batch
    chunks: int
    balance: list[int]      # layers per stage

    def __post_init__(self) -> None:
        rows_each(len(self.inputs), self.chunks)

    @property
    def batch(self) -> int:
        """Samples in the mini-batch."""
        return len(self.inputs)

    def loss_part(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One micro-batch's share of the mini-batch's mean loss."""
        return F.cross_entropy(outputs, targets, reduction='sum') / self.batch


def rows_each(batch: int, chunks: int) -> int:
    """Samples in each micro-batch. Raises ValueError if they cannot all have as many."""
    if batch % chunks:
        raise ValueError(f'{chunks} micro-batches of equal size cannot be cut from {batch} '
                         f'samples: choose --chunks that divides --batch')
    return batch // chunks


class Failed(RuntimeError):
    """The benchmark cannot go on; the message says why."""


class Contestant(Protocol):
    """Somebody who does the work. Gradients are dropped outside the clock, by all alike."""

    engine: str
    checkpoint: str   # one of CHECKPOINTS

    def step(self) -> float:
        """Forward, loss, backward: seconds."""

    def threads(self) -> set[int]:
        """Do a step; with how many intra-op threads each of its devices computed."""

    def gradients(self) -> Gradients:
        """What the latest step left, by the names that the plain model gives its parameters."""

    def forget(self) -> None:
        """Drop the gradients."""


def disagreement(gradients: Gradients, reference: Gradients) -> float:
    """The largest relative error of any parameter's gradient (Euclidean norms); infinite if a
    gradient is missing or not a number.

    A gradient that nearly vanishes is held against a millionth of all gradients together, since
    rounding alone makes it.
    """
    if gradients.keys() != reference.keys():
        return float('inf')
    floor = 1e-6 * sum(float(gradient.norm()) ** 2 for gradient in reference.values()) ** 0.5
    errors = [float((gradients[name] - gradient).norm()) / max(float(gradient.norm()), floor, 1e-30)
              for name, gradient in reference.items()]
    return max((error if error == error else float('inf') for error in errors), default=0.0)
