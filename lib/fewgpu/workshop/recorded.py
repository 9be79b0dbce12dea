"""Collectives of `fewgpu.collectives`, run on ranks that are threads, and every message of them noted.

    kept = record('all-reduce', ranks=4)   # what every rank held after every round, and all messages
    plot.exchanges(kept)                   # the picture of it

    run = on_ranks(lambda group: all_reduce(torch.ones(1000), group), ranks=4, latency=1.0)
    run.makespan, run.bytes_sent               # virtual seconds, and bytes by rank

It is the library's own code that runs. Only `Group` is replaced, by one whose messages go over the
network of the exercises (see `fewgpu.workshop.practice.wires`), which has a clock of its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fewgpu.collectives import (all_gather, all_reduce, all_to_all, broadcast, gather, reduce,
                                reduce_scatter, scatter)
from fewgpu.group import Parts
from fewgpu.workshop.practice.ranks import Rank, Run, run_ranks


class ThreadGroup:
    """A `fewgpu.collectives.Group` whose ranks are threads of this process, for tensors on the CPU."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self.rank, self.size = rank, rank.rank, rank.size
        self.bytes_sent = 0

    @property
    def clock(self) -> float:
        """Virtual seconds."""
        return self._rank.clock

    def exchange(self, what: str, sends: Parts = (), receives: Parts = ()) -> None:
        """As of `Group`: returns when all has been received, and what is sent has arrived."""
        sends = [(tensor.detach().contiguous(), peer) for tensor, peer in sends if tensor.numel()]
        for tensor, peer in sends:
            self._rank.send(tensor, peer)
        for tensor, peer in receives:
            if tensor.numel():
                tensor.detach().copy_(self._rank.receive(peer))
        self._rank.wait_for_sends()
        self.bytes_sent += sum(tensor.nbytes for tensor, _ in sends)


def on_ranks(fn: Callable[[ThreadGroup], Any], ranks: int, *, latency: float = 0.0,
             bandwidth: float = math.inf) -> Run:
    """Call `fn(group)` on so many ranks at the same time; the collectives take this `group`.

    `latency` is in virtual seconds, `bandwidth` in bytes a virtual second: what a rank sends leaves
    one message after the other, and so does what comes in at a rank. Nothing else takes time.
    """
    return run_ranks(lambda rank: fn(ThreadGroup(rank)), [()] * ranks, latency=latency, bandwidth=bandwidth)


Cell = tuple[tuple[int, int], ...]   # what has been added up in it: (piece, rank where it was at first), ...
Grid = tuple[tuple[Cell, ...], ...]  # a row a rank, with a cell a piece; () is an empty cell


class Arrow(NamedTuple):
    """A message: in which round (the first is 1), from whom to whom, and what was in it."""

    round: int
    source: int
    target: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Recording:
    """What a collective did, round by round."""

    name: str
    grids: tuple[Grid, ...]     #: what the ranks held at first, and after every round
    arrows: tuple[Arrow, ...]

    @property
    def rounds(self) -> int:
        return len(self.grids) - 1


class Row:
    """What a rank holds: `tensor`, and `pieces` of it, one a rank. A piece tells where it comes from.

    A number of a piece counts how often a certain piece of a certain rank has been added up in it.
    """

    def __init__(self, rank: int, ranks: int, pieces: int, filled: Sequence[int]) -> None:
        self.kinds = ranks * pieces
        self.tensor = torch.zeros(pieces * self.kinds, dtype=torch.int64)
        self.pieces = list(self.tensor.split(self.kinds))
        for piece in filled:
            self.pieces[piece][piece * ranks + rank] = 1

    def cells(self, ranks: int) -> tuple[Cell, ...]:
        return _cells(self.tensor, self.kinds, ranks)


def _cells(tensor: torch.Tensor, kinds: int, ranks: int) -> tuple[Cell, ...]:
    return tuple(tuple(divmod(kind, ranks) for kind, count in enumerate(part) for _ in range(count))
                 for part in tensor.view(-1, kinds).tolist())


def _pair(row: Row, group: ThreadGroup) -> None:
    if group.rank == 0:
        group.exchange('send', sends=[(row.tensor, 1)])
    elif group.rank == 1:
        group.exchange('receive', receives=[(row.tensor, 0)])


def _scatter(row: Row, group: ThreadGroup) -> None:
    scatter(row.pieces[group.rank], row.pieces if group.rank == 0 else None, group)


def _gather(row: Row, group: ThreadGroup) -> None:
    gather(row.pieces[group.rank], row.pieces if group.rank == 0 else None, group)


def _all_to_all(row: Row, group: ThreadGroup) -> None:
    all_to_all(row.pieces, [piece.clone() for piece in row.pieces], group)


def _reduce_scatter(row: Row, group: ThreadGroup) -> None:
    row.pieces[group.rank].copy_(reduce_scatter(row.pieces, group))


class _How(NamedTuple):
    call: Callable[[Row, ThreadGroup], None]
    filled: Callable[[int, range], Sequence[int]]   # which pieces rank r has at first
    whole: bool = False                             # is its tensor one piece?


OPERATIONS = {   # as MPI names them; the root is rank 0
    'send, receive': _How(_pair, lambda rank, all_: [0] if rank == 0 else [], True),
    'broadcast': _How(lambda row, group: broadcast(row.tensor, group),
                      lambda rank, all_: [0] if rank == 0 else [], True),
    'scatter': _How(_scatter, lambda rank, all_: all_ if rank == 0 else []),
    'gather': _How(_gather, lambda rank, all_: [rank]),
    'all-gather': _How(lambda row, group: all_gather(row.pieces, group), lambda rank, all_: [rank]),
    'all-to-all': _How(_all_to_all, lambda rank, all_: all_),
    'reduce': _How(lambda row, group: reduce(row.tensor, group), lambda rank, all_: [0], True),
    'all-reduce': _How(lambda row, group: all_reduce(row.tensor, group), lambda rank, all_: all_),
    'reduce-scatter': _How(_reduce_scatter, lambda rank, all_: all_),
}


def record(operation: str, ranks: int = 4) -> Recording:
    """Run one of OPERATIONS on 2 ranks or more, and note what every rank holds after every round.

    A round is one latency long, and bandwidth is no limit. Raises ValueError for another operation,
    or fewer ranks.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"there is no {operation!r}; there are {', '.join(OPERATIONS)}")
    if ranks < 2:
        raise ValueError(f'it takes two ranks to exchange something, not {ranks!r}')
    how = OPERATIONS[operation]
    pieces = 1 if how.whole else ranks
    rows = [Row(rank, ranks, pieces, how.filled(rank, range(pieces))) for rank in range(ranks)]
    arrows: list[Arrow] = []
    states = [[(0.0, row.cells(ranks))] for row in rows]   # of every rank: since when it has held what

    class Noting(ThreadGroup):
        def exchange(self, what: str, sends: Parts = (), receives: Parts = ()) -> None:
            note(self)   # what came of the exchange before
            clock = round(self.clock)
            arrows.extend(Arrow(clock + 1, self.rank, peer, _cells(tensor, pieces * ranks, ranks))
                          for tensor, peer in sends)
            super().exchange(what, sends, receives)

    def note(group: ThreadGroup) -> None:
        states[group.rank].append((group.clock, rows[group.rank].cells(ranks)))

    def body(rank: Rank) -> None:
        group = Noting(rank)
        how.call(rows[rank.rank], group)
        note(group)

    run = run_ranks(body, [()] * ranks, latency=1.0)
    grids = tuple(tuple([cells for since, cells in own if since <= now][-1] for own in states)
                  for now in range(round(run.makespan) + 1))
    return Recording(operation, grids, tuple(sorted(arrows)))
