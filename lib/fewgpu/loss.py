"""The loss, where it is computed: in the last stage, micro-batch by micro-batch.

A mean loss over a mini-batch of n rows is the sum over its micro-batches of loss_i * n_i / n. The
loss is scaled, never the gradients that have added up.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

LossFn = Callable[[Any, Any], torch.Tensor]


class WithLoss(nn.Module):
    """The last stage with the loss: from (inputs, (target, share)) to share * loss."""

    def __init__(self, module: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.module, self.loss_fn = module, loss_fn

    def forward(self, inputs: tuple[Any, tuple[Any, float]]) -> torch.Tensor:
        value, (target, share) = inputs
        loss = self.loss_fn(self.module(value), target)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise TypeError(f'loss_fn returns one number for a micro-batch, a tensor without '
                            f'dimensions, not {_shape(loss)}')
        return loss * share


def shares(rows: Sequence[int], update_every: int | None, loss_fn: LossFn) -> list[float]:
    """By what each micro-batch's loss is scaled: its share of the rows of its update.

    A `loss_fn` with reduction='sum' adds up by itself: 1.
    """
    if getattr(loss_fn, 'reduction', 'mean') == 'sum':
        return [1.0] * len(rows)
    every = update_every or len(rows)
    return [count / (sum(rows[i - i % every:i - i % every + every]) or 1)
            for i, count in enumerate(rows)]


def total(losses: Sequence[torch.Tensor], rows: Sequence[int], update_every: int | None,
          loss_fn: LossFn) -> torch.Tensor:
    """The loss of the mini-batch from what `WithLoss` returned for each micro-batch."""
    if update_every is None or getattr(loss_fn, 'reduction', 'mean') == 'sum':
        return torch.stack(list(losses)).sum()
    return torch.stack([loss * sum(rows[i - i % update_every:i - i % update_every + update_every])
                        for i, loss in enumerate(losses)]).sum() / sum(rows)


def _shape(loss: Any) -> str:
    return f'one of shape {tuple(loss.shape)}' if isinstance(loss, torch.Tensor) else f'{loss!r}'
