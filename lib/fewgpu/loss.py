"""The loss, where it is computed: in the last stage, micro-batch by micro-batch.

A mean loss over a mini-batch of n rows is the sum over its micro-batches of loss_i * n_i / n. The
loss is scaled, never the gradients that have added up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.gate import flags
from fewgpu.microbatch import rows_of, scatter
from fewgpu.schedule import Message, Schedule, gradient, target

LossFn = Callable[[Any, Any], torch.Tensor]


class WithLoss(nn.Module):
    """The last stage with the loss: from (inputs, (target, share)) to share * loss.

    A share of None: these are all rows there are, and any loss will do. Raises TypeError as `verify_loss`.
    """

    def __init__(self, module: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        verify_loss(loss_fn)
        self.module, self.loss_fn = module, loss_fn
        self._is_verified = False

    def forward(self, inputs: tuple[Any, tuple[Any, float | None]]) -> torch.Tensor:
        value, (target, share) = inputs
        output = self.module(value)
        loss = self.loss_fn(output, target)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise TypeError(f'loss_fn returns one number for a micro-batch, a tensor without '
                            f'dimensions, not {_shape(loss)}')
        if any(flags(output)) and not loss.requires_grad:
            raise RuntimeError('the loss does not depend on the output, or not differentiably: '
                               'nothing would be trained')
        if share is None:
            return loss
        if not self._is_verified:
            self._verify(output, target, loss)
        return loss * share

    @torch.no_grad()
    def _verify(self, output: Any, target: Any, loss: torch.Tensor) -> None:
        """Once: is it the mean, or the sum, that it is said to be?"""
        parts = [[*scatter(tree, 2)] for tree in (output, target)]
        rows = [rows_of(part) for part in parts[1]]
        if len(rows) < 2 or [rows_of(part) for part in parts[0]] != rows:
            return   # not to be told from one row
        loss, *halves = [value.double() for value in (loss, *(self.loss_fn(*pair) for pair in zip(*parts)))]
        if not all(value.isfinite() for value in (loss, *halves)):
            return   # nor from this: another mini-batch will tell
        self._is_verified = True
        is_a_mean = is_mean(self.loss_fn)
        mean, total = sum(a * b for a, b in zip(halves, rows)) / sum(rows), sum(halves)
        if not torch.allclose(loss, mean if is_a_mean else total, rtol=1e-2, atol=1e-6):
            known = torch.allclose(loss, total if is_a_mean else mean, rtol=1e-2, atol=1e-6)
            raise ValueError(
                f'loss_fn is taken for a {"mean over the rows" if is_a_mean else "sum"}, and it is '
                + ("a sum: say so by loss_fn=functools.partial(loss, reduction='sum')"
                   if known and is_a_mean else
                   'none: the loss of a mini-batch is then not made of those of its micro-batches'))


def verify_loss(loss_fn: Any) -> None:
    """Raises TypeError for what is no loss, or one that has parameters."""
    if isinstance(loss_fn, nn.Module) and any(True for _ in loss_fn.parameters()):
        raise TypeError('loss_fn has parameters, which no stage would train: put them into the last '
                        'layer of the module')
    if not callable(loss_fn):
        raise TypeError(f'loss_fn takes the output and the target of a micro-batch and returns its '
                        f'loss, as nn.functional.cross_entropy does; {loss_fn!r} is none')


def is_mean(loss_fn: LossFn) -> bool:
    """Is it a mean over the rows, or (where it, or a part of it, says reduction='sum') a sum?

    Raises ValueError for what is neither (the mean of a mini-batch is then not made of the means of
    its micro-batches), TypeError as `verify_loss`.
    """
    verify_loss(loss_fn)
    options = list(_options(loss_fn))
    if any(option.get('reduction', 'mean') == 'sum' for option in options):
        return False
    if any(option.get('weight') is not None for option in options):
        raise ValueError("a weighted mean does not add up over micro-batches: use reduction='sum', "
                         'and divide the loss yourself')
    return True


def verify_all_rows_count(loss_fn: LossFn, target: Any) -> None:
    """Raises ValueError if the mean would leave out rows that have `ignore_index` as their target."""
    ignoring = getattr(loss_fn, 'func', loss_fn) in (nn.functional.cross_entropy, nn.functional.nll_loss)
    indices = {option['ignore_index'] for option in _options(loss_fn) if 'ignore_index' in option} or (
        {-100} if ignoring else set())
    for leaf in pytree.tree_leaves(target):
        if isinstance(leaf, torch.Tensor) and not leaf.is_floating_point() and not leaf.is_complex():
            for index in indices:
                if bool((leaf == index).any()):
                    raise ValueError(f'targets of {index} are left out of the mean, which then does not '
                                     f"add up over micro-batches: use reduction='sum', and divide the "
                                     f'loss yourself')


def _options(loss_fn: LossFn) -> Iterator[dict[str, Any]]:
    """What the loss and its parts were told: by functools.partial, or as modules."""
    yield getattr(loss_fn, 'keywords', {})
    for owner in (loss_fn, getattr(loss_fn, 'func', None), getattr(loss_fn, '__self__', None)):
        for part in owner.modules() if isinstance(owner, nn.Module) else ():
            yield {**vars(part), **part._buffers}


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


def target_messages(y: Any, rows: Sequence[int], schedule: Schedule, loss_fn: LossFn,
                    scales: Sequence[float] | None = None) -> dict[Message, Any]:
    """The messages that make the last stage compute the loss of each micro-batch (of so many rows), and
    start its backward, from its scale (1), where there is one. None without targets `y`, which only an evaluation
    may lack.

    Raises TypeError if a schedule that trains has no targets, ValueError if their rows are not those of
    the inputs, or if a mean loss leaves some out.
    """
    last, trains = schedule.stages - 1, any(op.kind == 'U' for op in schedule)
    if y is None and trains:
        raise TypeError('the last stage needs the targets: step(x, y)')
    if y is None:
        return {}
    if rows_of(y) != sum(rows):
        raise ValueError(f'{rows_of(y)} rows of targets for {sum(rows)} rows of inputs')
    if is_mean(loss_fn):
        verify_all_rows_count(loss_fn, y)
    parts = zip(scatter(y, len(rows)), shares(rows, schedule.update_every, loss_fn))
    feed: dict[Message, Any] = {target(last, i): part for i, part in enumerate(parts)}
    if trains:
        feed |= {gradient(last, i): [_start(scale)]
                 for i, scale in enumerate([1.0] * len(rows) if scales is None else scales)}
    return feed


def _start(scale: float) -> torch.Tensor:
    """Where a backward starts; autograd makes it of the loss's type. As small as it can be without being rounded."""
    start = torch.full((), scale)
    return start if start.item() == scale else torch.full((), scale, dtype=torch.float64)
