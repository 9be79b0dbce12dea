"""Training by gradients that are one update old, on functions whose gradients are known; and how it goes wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from fewgpu.ledger import Counting, Ledger
from fewgpu.workshop.graders.stashes import alive, quick_collections
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import close, shown
from fewgpu.workshop.grading.verdict import Line

ENOUGH = 5   # tensors as large as the weights: two versions, a sum, and what is in between


@dataclass(frozen=True, eq=False)
class Training:
    """Micro-batch i has the loss 1/2 sum of curvature[i] (w - goal[i])^2."""

    start: torch.Tensor
    curvature: torch.Tensor
    goal: torch.Tensor
    per_update: int
    lr: float
    asked: list[tuple[torch.Tensor, int]] = field(default_factory=list)   #: copies of w, and i, of each call
    places: set[int] = field(default_factory=set)                         #: where those w were in memory
    given: list[torch.Tensor] = field(default_factory=list)               #: the weights that were handed over

    def by(self, train: Callable[..., Any]) -> Any:
        """What the learner's function returns."""
        self.given.append(self.start.clone())
        return train(self.given[0], self.gradient, self.micro_batches, self.per_update, self.lr)

    def gradient(self, w: torch.Tensor, i: int) -> torch.Tensor:
        if not isinstance(w, torch.Tensor) or w.shape != self.start.shape:
            raise TypeError(f'gradient(w, i) takes a tensor of the shape of the weights, not {shown(w)}')
        self.asked.append((w.detach().clone(), i))
        self.places.add(w.data_ptr())
        return self.slope(w, i)

    @property
    def is_aliased(self) -> bool:
        """Were all gradients taken at one and the same tensor, whatever stood in it?"""
        return len(self.places) <= 1

    def slope(self, w: torch.Tensor, i: int) -> torch.Tensor:
        if not 0 <= i < len(self.goal):
            raise IndexError(f'there is no micro-batch {i}: they are 0 to {len(self.goal) - 1}')
        return self.curvature[i] * (w - self.goal[i])

    @property
    def is_plain(self) -> bool:
        """Is the gradient of every micro-batch at w just w?"""
        return bool((self.curvature == 1).all() and (self.goal == 0).all())

    @property
    def micro_batches(self) -> int:
        return len(self.goal)

    def groups(self) -> list[range]:
        return [range(first, first + self.per_update) for first in range(0, self.micro_batches, self.per_update)]

    def mean(self, w: torch.Tensor, group: range) -> torch.Tensor:
        return sum(self.slope(w, i) for i in group) / self.per_update

    def history(self) -> list[torch.Tensor]:
        """By definition: W(0), W(1), ..."""
        w = [self.start]
        for t, group in enumerate(self.groups()):
            w.append(w[t] - self.lr * self.mean(w[max(t - 1, 0)], group))
        return w


def trainings(random: Random) -> list[Training]:
    """Smallest first."""
    def tensor(*numbers: float) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float64)

    def plain(groups: int, per_update: int) -> Training:
        count = groups * per_update
        return Training(tensor(8.0), torch.ones(count, 1, dtype=torch.float64),
                        torch.zeros(count, 1, dtype=torch.float64), per_update, 0.5)

    def any_one(groups: int, per_update: int, size: int) -> Training:
        generator = torch.Generator().manual_seed(random.randrange(10**6))
        curvature, goal = torch.rand(2, groups * per_update, size, dtype=torch.float64, generator=generator)
        return Training(10 * torch.rand(size, dtype=torch.float64, generator=generator), curvature + 0.5, 10 * goal - 5,
                        per_update, random.choice((0.1, 0.25, 0.4)))

    return [plain(1, 1), plain(2, 1), plain(3, 2), any_one(1, 2, 1), any_one(2, 2, 1), any_one(3, 2, 1),
            any_one(4, 1, 2), any_one(4, 3, 2), any_one(7, 4, 3), any_one(9, 2, 3)]


def mistaken(case: Training, mistake: str) -> torch.Tensor:
    """What one mistake makes of it."""
    if mistake == 'every-micro-batch':
        return Training(case.start, case.curvature, case.goal, 1, case.lr).history()[-1]
    if mistake == 'every-micro-batch, mean':
        return Training(case.start, case.curvature, case.goal, 1, case.lr / case.per_update).history()[-1]
    if mistake == 'returns-previous':
        return case.history()[-2]
    if mistake == 'late-gradient':
        return _late(case)
    w = [case.start]
    for t, group in enumerate(case.groups()):
        used = w[max({'fresh-gradient': t, 'two-updates-old': t - 2, 'never-newer': 0,
                      'first-at-newest': 1 if t == 1 else t - 1}.get(mistake, t - 1), 0)]
        change = case.lr * {'sum': case.per_update, 'all': case.per_update / case.micro_batches,
                            'twice': 1 / case.per_update,
                            'uphill': -1}.get(mistake.rpartition(', ')[2], 1) * case.mean(used, group)
        if mistake == 'last-only':
            change = case.lr * case.slope(used, group[-1])
        if mistake == 'last-only, mean':
            change = case.lr * case.slope(used, group[-1]) / case.per_update
        if mistake == 'total-kept':
            change = case.lr * sum(case.slope(w[max(g - 1, 0)], i) for g in range(t + 1)
                                   for i in case.groups()[g]) / case.per_update
        w.append((used if mistake == 'applied-to-old' else w[t]) - change)
    return w[-1]


def _late(case: Training) -> torch.Tensor:
    """The gradient is taken at the newest weights and used when the next group begins."""
    w, waiting = case.start, None
    for group in case.groups():
        if waiting is not None:
            w = w - case.lr * waiting
        waiting = case.mean(w, group)
    return w


MISTAKES = [
    'fresh-gradient', 'applied-to-old', 'sum-not-mean, sum', 'every-micro-batch', 'every-micro-batch, mean',
    'two-updates-old', 'never-newer', 'first-at-newest', 'mean-of-all, all', 'divided-twice, twice', 'uphill, uphill',
    'last-only',
    'last-only, mean', 'total-kept', 'returns-previous', 'late-gradient']


def verify_manners(cases: list[Training], lines: list[Line]) -> None:
    """The caller's weights are as they were, and no gradient was asked for twice."""
    for case in cases:
        if not torch.equal(case.given[0], case.start):
            raise Failure(misconception='caller-changed', lines=lines, case=(
                f'w = {shown(case.start)}\ntrain(w, ...)\nw is now  {shown(case.given[0])}\n'
                f'expected  {shown(case.start)}'))
        if len(case.asked) > case.micro_batches:
            raise Failure(misconception='asks-again', lines=lines, case=(
                f'{case.micro_batches} micro-batches, per_update = {case.per_update}\ngradients computed\n'
                f'yours     {len(case.asked)}\nexpected  {case.micro_batches}'))


def picture(case: Training) -> str:
    """At which weights the gradients were asked for, against those that were wanted."""
    known, lines = case.history(), ['micro-batch   gradient at   wanted']
    for w, i in case.asked[:16]:
        at = next((f'W({t})' for t, each in enumerate(known) if close(w, each, tolerance=1e-6)), 'neither')
        wanted = f'W({max(i // case.per_update - 1, 0)})'
        lines.append(f'{i:>11}   {at:<11}   {wanted}')
    return '\n'.join(lines)


def told(case: Training, got: Any, wanted: torch.Tensor) -> str:
    first = (f'W(0) = {shown(case.start)}, {case.micro_batches} micro-batches, per_update = {case.per_update}, '
             f'lr = {case.lr}{", the gradient at w is w" * case.is_plain}')
    history = [f'W({t}) = {shown(w)}' for t, w in enumerate(case.history()[1:], 1)]
    return '\n'.join([first, f'yours     {shown(got)}', f'expected  {shown(wanted)}', *history[:4]])


def alive_at_each_gradient(train: Callable[..., Any], groups: int, per_update: int) -> list[int]:
    """How many tensors as large as the weights, without the caller's, are alive whenever a gradient is asked for."""
    start, ledger, counts = torch.ones(1000, dtype=torch.float64), Ledger(), []

    def gradient(w: torch.Tensor, i: int) -> torch.Tensor:
        counts.append(alive(ledger, start.nbytes))
        return w * 0.5

    with Counting(ledger), quick_collections():
        train(start, gradient, groups * per_update, per_update, 0.1)
    return counts


def losses(train: Callable[..., torch.Tensor], lr: float, updates: int) -> tuple[float, float]:
    """Of w^2 / 2 after so many updates from 1: at once, and by the learner's function, which diverges if lr > 1."""
    start = torch.ones(1, dtype=torch.float64)
    delayed = train(start, lambda w, i: w.clone(), updates, 1, lr)
    return (1 - lr) ** (2 * updates) / 2, float(delayed) ** 2 / 2
