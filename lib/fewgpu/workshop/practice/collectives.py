"""Practice ranks that talk all at the same time, in collective operations, each of them round a ring.

    def average(tensor, rank):
        return rank.all_gather(rank.reduce_scatter(tensor) / rank.size)

    done = run_ranks(average, [a, b])      # average(a, rank) on rank 0, average(b, rank) on rank 1
    done.results, done.bytes_sent, done.calls

What they cost is what their messages cost (see `wires`): with N ranks, a reduce-scatter of S bytes and an all-gather to
S bytes send (N - 1) / N S bytes from each rank, exactly; an all-reduce, which is one after the other, sends twice that.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fewgpu.workshop.practice import ranks
from fewgpu.workshop.practice.misuse import Misuse


class Uneven(ValueError):
    """A tensor that cannot be cut into as many equal pieces as there are ranks."""


@dataclass(frozen=True)
class Call:
    """One collective operation of one rank."""

    kind: str              #: 'reduce-scatter', 'all-gather' or 'all-reduce'
    numbers: int           #: in the whole tensor
    dtype: torch.dtype

    def __str__(self) -> str:
        return f'{self.kind} of {self.numbers} number{"s" if self.numbers != 1 else ""}'


class Rank:
    """One of `size` ranks: its number, `rank`, and what all of them do together.

    All ranks call the same operations in the same order, with tensors of one dimension that are equally long.
    """

    def __init__(self, alone: ranks.Rank, calls: list[list[Call]]) -> None:
        self.rank, self.size = alone.rank, alone.size
        self.gathered: list[weakref.ref] = []   #: the storages that all_gather has returned
        self._alone, self._calls = alone, calls

    @property
    def calls(self) -> list[Call]:
        """The operations that this rank has called."""
        return self._calls[self.rank]

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's piece of the sum over all ranks: of `size` equal pieces, the one with its number.

        Raises `Uneven` if the tensor cannot be cut into equal pieces.
        """
        self._agree('reduce-scatter', tensor, 1)
        return self._scatter(tensor)

    def all_gather(self, piece: torch.Tensor) -> torch.Tensor:
        """The pieces of all ranks, in the order of the ranks, as one tensor."""
        self._agree('all-gather', piece, self.size)
        whole = self._gather(piece)
        self.gathered.append(weakref.ref(whole.untyped_storage()))
        return whole

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, whole, as a new tensor."""
        self._agree('all-reduce', tensor, 1)
        return self._gather(self._scatter(tensor))

    def _scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        if len(tensor) % self.size:
            raise Uneven(f'a tensor of {len(tensor)} numbers has no {self.size} equal pieces')
        pieces, (right, left) = tensor.detach().reshape(self.size, len(tensor) // self.size), self._neighbours()
        partial = pieces[left].clone()
        for distance in range(2, self.size + 1):
            self._alone.send(partial, right)
            partial = self._alone.receive(left) + pieces[(self.rank - distance) % self.size]
        return partial

    def _gather(self, piece: torch.Tensor) -> torch.Tensor:
        right, left = self._neighbours()
        piece = piece.detach()
        pieces = [piece] * self.size
        for distance in range(1, self.size):
            self._alone.send(piece, right)
            piece = pieces[(self.rank - distance) % self.size] = self._alone.receive(left)
        return torch.cat(pieces)

    def _neighbours(self) -> tuple[int, int]:
        return (self.rank + 1) % self.size, (self.rank - 1) % self.size

    def _agree(self, kind: str, tensor: torch.Tensor, pieces: int) -> None:
        """Note the call. Raises `Misuse` if another rank has called something else in its place."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f'{kind} takes a tensor, not {type(tensor).__name__}')
        if tensor.dim() != 1:
            raise ValueError(f'{kind} takes a tensor of one dimension, not of shape {tuple(tensor.shape)}')
        mine, number = self.calls, len(self.calls)
        mine.append(Call(kind, len(tensor) * pieces, tensor.dtype))
        for other, theirs in enumerate(self._calls):
            if len(theirs) > number and theirs[number] != mine[number]:
                raise Misuse('different-reductions', f'Number {number} (counted from 0) is {theirs[number]} '
                             f'({theirs[number].dtype}) on rank {other} and {mine[number]} ({tensor.dtype}) on rank '
                             f'{self.rank}.')


@dataclass(frozen=True)
class Done:
    """What came of a run."""

    run: ranks.Run
    calls: list[list[Call]]   #: by rank

    @property
    def results(self) -> list[Any]:
        return self.run.results

    @property
    def bytes_sent(self) -> list[int]:
        """By rank."""
        return self.run.bytes_sent

    @property
    def makespan(self) -> float:
        return self.run.makespan


def run_ranks(function: Callable, arguments: Sequence[Any], *, latency: float = 0.0,
              bandwidth: float = math.inf) -> Done:
    """As `ranks.run_ranks`, with ranks that have collective operations and nothing else."""
    calls: list[list[Call]] = [[] for _ in arguments]

    def on_rank(*given: Any) -> Any:
        *own, alone = given
        return function(*own, Rank(alone, calls))

    return Done(ranks.run_ranks(on_rank, arguments, latency=latency, bandwidth=bandwidth), calls)
