"""Mini-batches on their way into a pipeline, and their losses on the way out."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import torch
from torch import nn

from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.loss import LossFn, rows_of_updates, target_messages, total
from fewgpu.microbatch import scatter
from fewgpu.schedule import Message, Schedule, activation


@dataclass(frozen=True)
class MiniBatches:
    """One or many: inputs, targets, and the rows of every micro-batch of each. Their micro-batches are
    numbered on from one to the next."""

    xs: Sequence[Any]
    ys: Sequence[Any]
    rows: Sequence[Sequence[int]]

    @property
    def counts(self) -> list[int]:
        """How many micro-batches each has."""
        return [len(each) for each in self.rows]

    def verify_for(self, module: nn.Module) -> None:
        """Raises ValueError if layers must know how many micro-batches each has, and these do not agree."""
        counted = any(isinstance(part, DeferredBatchNorm) for part in module.modules())
        if counted and len(set(self.counts)) > 1:
            raise ValueError(f'deferred batch norm counts the micro-batches of a mini-batch, and these have '
                             f'{min(self.counts)} to {max(self.counts)}: give all at least as many rows as '
                             f'chunks')

    def messages(self, schedule: Schedule, loss_fn: LossFn, stages: Collection[int], scale: float = 1.0
                 ) -> dict[Message, Any]:
        """What the caller sends to those of `stages` that take some. Raises as `target_messages` does."""
        messages: dict[Message, Any] = {}
        weights = iter(self.weights(schedule))
        for first, x, y, rows in zip(accumulate(self.counts, initial=0), self.xs, self.ys, self.rows):
            parts: dict[Message, Any] = {}
            if 0 in stages:
                parts |= {activation(0, i): part for i, part in enumerate(scatter(x, len(rows)))}
            if schedule.stages - 1 in stages:
                parts |= target_messages(y, rows, schedule, loss_fn, [scale * next(weights) for _ in rows])
            messages |= {message._replace(micro_batch=first + message.micro_batch): value
                         for message, value in parts.items()}
        return messages

    def weights(self, schedule: Schedule) -> list[float]:
        """By what the gradient of each micro-batch is multiplied, beside its share of the rows of its update: 1.

        But where stages live on several devices an update is of a round of several such updates, as many as there
        are replicas, and another number on another stage. All rows of a round are to count alike, so micro-batches
        weigh by the rows of their update (1 is what the first one has), and `rounds` divide.
        """
        if not _has_rounds(schedule):
            return [1.0] * sum(self.counts)
        counts = self._of_updates(schedule)
        return [count / counts[0] for count in counts]

    def rounds(self, schedule: Schedule, stage: int) -> list[float]:
        """By what a stage divides the gradients of each of its updates: what the micro-batches of that weigh. With
        as many rows in each that is the number of replicas. Empty: by nothing."""
        if not _has_rounds(schedule):
            return []
        counts, covered = self._of_updates(schedule), schedule.covered(stage)
        return [sum(counts[first:first + covered]) / (schedule.update_every * counts[0])
                for first in range(0, len(counts), covered)]

    def _of_updates(self, schedule: Schedule) -> list[int]:
        """For each micro-batch, how many rows are in its update (1, if there are no rows at all)."""
        return [count or 1 for rows in self.rows for count in rows_of_updates(rows, schedule.update_every)]

    def losses(self, values: Sequence[torch.Tensor], update_every: int | None, loss_fn: LossFn
               ) -> torch.Tensor | None:
        """One a mini-batch, from what the last stage returned for every micro-batch; None without."""
        left = iter(values)
        return torch.stack([total([*islice(left, len(rows))], rows, update_every, loss_fn)
                            for rows in self.rows]) if values else None


def _has_rounds(schedule: Schedule) -> bool:
    return bool(schedule.update_every) and any(len(devices) > 1 for devices in schedule.devices_of.values())


def pairs(batches: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """The inputs, and the targets, of mini-batches (x, y). Raises ValueError for none, TypeError for what
    is no pair."""
    if not isinstance(batches, Iterable):
        raise TypeError(f'train takes mini-batches, a list of pairs (x, y), not {batches!r}')
    batches = [*batches]
    if not batches:
        raise ValueError('there is nothing to train on: give at least one mini-batch (x, y)')
    for batch in batches:
        verify_pair(batch)
    return [x for x, _ in batches], [y for _, y in batches]


def verify_pair(batch: Any) -> None:
    """Raises TypeError for a mini-batch that is no (x, y)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise TypeError(f'a mini-batch to train on is a pair (x, y), not a {type(batch).__name__}'
                        + (f' of {len(batch)}' if isinstance(batch, (tuple, list)) else ''))


def verify_same_rows(mine: Sequence[int | None], first: Sequence[int]) -> None:
    """Raises ValueError if this rank has mini-batches of other sizes than the rank of the first stage;
    None is a mini-batch without inputs."""
    if len(mine) != len(first):
        raise ValueError(f'this rank was given {len(mine)} mini-batches, the rank of the first stage '
                         f'{len(first)}: every rank takes the same ones')
    for here, there in zip(mine, first):
        if here not in (None, there):
            raise ValueError(f'this rank was given {here} rows, the rank of the first stage {there}: '
                             f'every rank takes the same mini-batch')
