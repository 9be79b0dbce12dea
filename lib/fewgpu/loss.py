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


def is_mean(loss_fn: LossFn) -> bool:
    """Is it a mean over the rows, or (with reduction='sum') a sum?

    Raises ValueError for what is neither (the mean of a mini-batch is then not made of the means of
    its micro-batches), TypeError for a loss that has parameters.
    """
    options = {**getattr(loss_fn, 'keywords', {}), **getattr(loss_fn, '__dict__', {})}
    if isinstance(loss_fn, nn.Module):
        options |= dict(loss_fn.named_buffers())
        if any(True for _ in loss_fn.parameters()):
            raise TypeError('loss_fn has parameters, which no stage would train: put them into the '
                            'last layer of the module')
    if options.get('reduction', 'mean') == 'sum':
        return False
    if options.get('weight') is not None:
        raise ValueError("a weighted mean does not add up over micro-batches: use reduction='sum', "
                         'and divide the loss yourself')
    return True


def verify_all_rows_count(loss_fn: LossFn, target: Any) -> None:
    """Raises ValueError if the mean would leave out rows that have `ignore_index` as their target."""
    index = getattr(loss_fn, 'ignore_index', getattr(loss_fn, 'keywords', {}).get('ignore_index', -100))
    ignores = hasattr(loss_fn, 'ignore_index') or getattr(loss_fn, 'func', loss_fn) in (
        nn.functional.cross_entropy, nn.functional.nll_loss)
    if ignores and isinstance(target, torch.Tensor) and not target.is_floating_point() \
            and bool((target == index).any()):
        raise ValueError(f'targets of {index} are left out of the mean, which then does not add up '
                         f"over micro-batches: use reduction='sum', and divide the loss yourself")


def rows_of_updates(rows: Sequence[int], update_every: int | None) -> list[int]:
    """For each micro-batch, how many rows are in its update."""
    every = update_every or len(rows)
    return [sum(rows[i - i % every:i - i % every + every]) for i in range(len(rows))]


def shares(rows: Sequence[int], update_every: int | None, loss_fn: LossFn) -> list[float]:
    """By what each micro-batch's loss is scaled: its share of the rows of its update; 1 for sums."""
    if not is_mean(loss_fn):
        return [1.0] * len(rows)
    return [count / (of_update or 1)
            for count, of_update in zip(rows, rows_of_updates(rows, update_every))]


def total(losses: Sequence[torch.Tensor], rows: Sequence[int], update_every: int | None,
          loss_fn: LossFn) -> torch.Tensor:
    """The loss of the mini-batch, without a graph, from what `WithLoss` returned."""
    if is_mean(loss_fn):
        losses = [loss * (of_update / (sum(rows) or 1))
                  for loss, of_update in zip(losses, rows_of_updates(rows, update_every))]
    return torch.stack(list(losses)).sum().detach()


def _shape(loss: Any) -> str:
    return f'one of shape {tuple(loss.shape)}' if isinstance(loss, torch.Tensor) else f'{loss!r}'
