"""What the checks of ZeRO's step share: cases, the plain optimizer's answer, and what misconceptions would answer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import close, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.collectives import Done, Rank, Uneven, run_ranks
from fewgpu.workshop.practice.misuse import Misuse

NUMBER = 8   # bytes of one
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    'SGD': lambda tensors: torch.optim.SGD(tensors, lr=1.0),
    'SGD with momentum': lambda tensors: torch.optim.SGD(tensors, lr=0.5, momentum=0.5),
    'Adam': lambda tensors: torch.optim.Adam(tensors, lr=0.125),
}
Snapshots = list[list[torch.Tensor]]   # of every rank, the weights after every step


@dataclass(frozen=True)
class Case:
    """Weights 1, 2, 3, ..., and the gradients of every rank in every step."""

    gradients: tuple[tuple[tuple[float, ...], ...], ...]   #: by step, by rank
    optimizer: str = 'SGD'

    @property
    def ranks(self) -> int:
        return len(self.gradients[0])

    @property
    def numbers(self) -> int:
        return len(self.gradients[0][0])

    @property
    def piece(self) -> int:
        """Numbers in a rank's piece."""
        return -(-self.numbers // self.ranks)

    def weights(self) -> torch.Tensor:
        return torch.arange(1, self.numbers + 1, dtype=torch.float64)

    def gradient(self, step: int, rank: int) -> torch.Tensor:
        return torch.tensor(self.gradients[step][rank], dtype=torch.float64)

    def __str__(self) -> str:
        ranks = f'{self.ranks} rank{"s" if self.ranks > 1 else ""}'
        return f'{ranks}, weights {shown(self.weights(), 30)}, {self.optimizer}'


def case(random: Random, ranks: int, numbers: int, steps: int, optimizer: str) -> Case:
    """With gradients that are never zero."""
    def draw() -> float:
        return float(random.choice([-4, -3, -2, -1, 1, 2, 3, 4]))
    return Case(tuple(tuple(tuple(draw() for _ in range(numbers)) for _ in range(ranks)) for _ in range(steps)),
                optimizer)


def cases(random: Random) -> list[Case]:
    """The smallest first; lengths that the ranks do not divide, and shorter ones than there are ranks."""
    sizes = [(2, 2, 1, 'SGD'), (2, 3, 1, 'SGD'), (1, 2, 2, 'SGD with momentum'), (2, 4, 2, 'SGD with momentum'),
             (3, 5, 3, 'SGD with momentum'), (4, 2, 2, 'SGD'), (2, 5, 3, 'Adam'), (5, 1, 2, 'Adam'),
             *((random.randrange(2, 6), random.randrange(1, 14), 3, random.choice(list(OPTIMIZERS))) for _ in range(4))]
    return [case(random, *size) for size in sizes]


@dataclass
class Made:
    """The optimizers that a rank has made."""

    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)

    def state(self) -> int:
        """Numbers of their state, but for single ones (Adam's count of steps)."""
        return sum(value.numel() for optimizer in self.optimizers for state in optimizer.state.values()
                   for value in state.values() if isinstance(value, torch.Tensor) and value.dim())


def run(work: Work, case: Case) -> tuple[Done, list[Made]]:
    """Let the learner's ranks train; the results are the weights after every step."""
    made = [Made() for _ in range(case.ranks)]

    def on_rank(rank: Rank) -> list[torch.Tensor]:
        def make(tensors: Any) -> torch.optim.Optimizer:
            made[rank.rank].optimizers.append(OPTIMIZERS[case.optimizer](tensors))
            return made[rank.rank].optimizers[-1]

        weights, snapshots = case.weights(), []
        sharded = work.Sharded(weights, make, rank)
        for step in range(len(case.gradients)):
            sharded.step(case.gradient(step, rank.rank))
            snapshots.append(weights.clone())
        return snapshots

    try:
        return run_ranks(on_rank, [() for _ in range(case.ranks)]), made
    except Misuse:
        raise
    except (RuntimeError, ValueError) as error:   # Uneven is one
        raise padding(work, error, case.numbers, case.piece * case.ranks) or error from None


def padding(work: Work, error: Exception, numbers: int, all_numbers: int) -> Failure | None:
    """What an error says of padding, if it does."""
    if isinstance(error, Uneven):
        return Failure(f'(Here {error}.)', misconception='not-padded', lines=work.lines(error.__traceback__))
    told = {int(number) for number in re.findall(r'\d+', str(error).partition('\n')[0])}
    if numbers != all_numbers and {numbers, all_numbers} <= told:
        return Failure(f'(Of {all_numbers} numbers {numbers} are weights: {error})', misconception='padding-kept',
                       lines=work.lines(error.__traceback__))
    return None


def plain(case: Case, scale: Callable[[int], float] = lambda ranks: 1 / ranks) -> Snapshots:
    """By definition: an optimizer of all weights, and the mean gradient."""
    weights, snapshots = case.weights(), []
    optimizer = OPTIMIZERS[case.optimizer]([weights])
    for step in range(len(case.gradients)):
        weights.grad = sum(case.gradient(step, rank) for rank in range(case.ranks)) * scale(case.ranks)
        optimizer.step()
        snapshots.append(weights.clone())
    return [snapshots] * case.ranks


def pieces_of(case: Case, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    whole = torch.cat([tensor, tensor.new_zeros(case.piece * case.ranks - case.numbers)])
    return [piece.clone() for piece in whole.chunk(case.ranks)]


def played(case: Case, *, local: bool = False, mean: bool = True, fresh: bool = False, adds: bool = False,
           owner: Callable[[int, int], int] = lambda rank, ranks: rank, gathers: bool = True,
           early: bool = False) -> Snapshots:
    """What ranks with misconceptions do: piece `owner(rank)` of the weights is trained with piece `rank` of the
    gradient (or, if `local`, of the rank's own), and put in place `rank`; `fresh`: by a new optimizer in each step;
    `early`: before its step."""
    ranks = range(case.ranks)
    weights = [pieces_of(case, case.weights())[owner(rank, case.ranks)] for rank in ranks]
    optimizers = [OPTIMIZERS[case.optimizer]([piece]) for piece in weights]
    snapshots: Snapshots = [[] for _ in ranks]
    for step in range(len(case.gradients)):
        before = torch.cat(weights)[:case.numbers]
        all_pieces = [pieces_of(case, case.gradient(step, rank)) for rank in ranks]
        for rank, piece in enumerate(weights):
            gradient = all_pieces[rank][rank] if local else sum(each[rank] for each in all_pieces)
            gradient = gradient / case.ranks if mean else gradient
            piece.grad = piece.grad + gradient if adds and piece.grad is not None else gradient
            (OPTIMIZERS[case.optimizer]([piece]) if fresh else optimizers[rank]).step()
        for rank in ranks:
            whole = weights if gathers else [
                weights[rank] if other == rank else each for other, each in enumerate(pieces_of(case, case.weights()))]
            snapshots[rank].append(before if early else torch.cat(list(whole))[:case.numbers])
    return snapshots


def without_rest(case: Case) -> Snapshots:
    """What those do who cut the rest off: the numbers at the end that do not divide are never trained."""
    trained = case.numbers - case.numbers % case.ranks
    return [[torch.cat([weights[:trained], case.weights()[trained:]]) for weights in of_rank]
            for of_rank in plain(case)]


def tell(case: Case, got: Any, wanted: Snapshots) -> str:
    """The first weights that are wrong."""
    for step in range(0 if isinstance(got, BaseException) else len(case.gradients)):
        for rank in range(case.ranks):
            if not close(got[rank][step], wanted[rank][step]):
                gradients = '; '.join(shown(case.gradient(step, other), 30) for other in range(min(case.ranks, 3)))
                return (f'{case}\nstep {step + 1}    gradients {gradients}{"; ..." if case.ranks > 3 else ""}\n'
                        f'yours     weights on rank {rank}: {shown(got[rank][step], 45)}\n'
                        f'expected  weights on rank {rank}: {shown(wanted[rank][step], 45)}')
    return str(case)
