"""Ranks to practise with: threads of this process, on a network with a clock of its own.

    run = run_ranks(all_reduce, [a, b, c], latency=1.0, bandwidth=100.0)    # all_reduce(a, rank) on rank 0, ...
    run.results, run.makespan, run.bytes_sent

One rank runs at a time, always the one whose clock is behind the others', so that what happens, and when, is the same
in every run and on every machine. Time is virtual: only messages (see `wires`) and `work` take any. Where all that have
not ended wait for what nobody sends, that is a deadlock, seen at once.
"""

import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fewgpu.workshop.practice.misuse import Deadlock, Misuse
from fewgpu.workshop.practice.wires import ChangedInFlight, Message, Reduction, Wires

JOIN = 5.0   # seconds that a rank may take to end after another one has failed


class Handle:
    """A reduction that has been started and goes on beside whatever else the rank does."""

    def __init__(self, rank: 'Rank', tensor: torch.Tensor, reduction: Reduction) -> None:
        self._rank, self._tensor, self._reduction, self._version = rank, tensor, reduction, tensor._version

    def wait(self) -> None:
        """Wait for its end. From now on, and not earlier, the tensor holds the sum over all ranks."""
        reduction, rank = self._reduction, self._rank
        if rank.rank in reduction.waited:
            return
        rank._go_on(lambda: reduction.ends, lambda: reduction.missing(rank.size))
        reduction.waited.add(rank.rank)
        if self._tensor._version != self._version:
            raise ChangedInFlight(reduction.tensors[rank.rank])
        with torch.no_grad():
            self._tensor.copy_(reduction.total())


class Rank:
    """One of `size` ranks: its number, `rank`, and what it can do."""

    def __init__(self, number: int, size: int, wires: Wires, control: threading.Semaphore) -> None:
        self.rank, self.size = number, size
        self.clock = 0.0                                          #: virtual seconds
        self.worked: list[tuple[float, float]] = []               #: from when to when it has computed
        self._wires, self._control, self._turn = wires, control, threading.Semaphore(0)
        self._ready: Callable[[], float | None] = lambda: 0.0     # when it can go on, if that is known
        self._waits_for: Callable[[], str] = str
        self._ended, self._thrown = False, None
        self._reductions = 0                                      # that it has started

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a copy of the tensor to rank `to`. Returns at once: the message is then on its way."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f'send takes a tensor, not {type(tensor).__name__}')
        self._wires.send(self.rank, self._peer(to), tensor.detach().clone(), self.clock)

    def wait_for_sends(self) -> None:
        """Wait until all that this rank has sent has arrived; it need not have been received."""
        mine = [each for each in self._wires.messages if each.source == self.rank]
        # One leaves after the other, and all take the same latency: the last that was sent is the last that arrives.
        self._go_on(lambda: mine[-1].arrives if mine else self.clock)

    def receive(self, source: int) -> torch.Tensor:
        """Wait for the next message from rank `source`, in the order in which they were sent, and return its tensor."""
        source = self._peer(source)
        arrived = self._wires.arrived[source, self.rank]
        self._go_on(lambda: arrived[0].arrives if arrived else None, lambda: f'a message from rank {source}')
        return arrived.popleft().take()

    def start_all_reduce(self, tensor: torch.Tensor) -> Handle:
        """Start to add up the tensors of all ranks. Returns at once; `wait()` of the handle puts the sum into `tensor`.

        Until then the tensor belongs to the network: what is in it is undefined (here nan), and it must not be changed.
        The first reduction that a rank starts goes with the first of every other rank, the second with the second, ...:
        nobody looks at names. One after the other they take 2 (N - 1) (latency + bytes / N / bandwidth) seconds each,
        once all ranks have started them.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f'start_all_reduce takes a tensor, not {type(tensor).__name__}')
        reduction = self._wires.reduce(self._reductions, self.rank, tensor.detach(), self.clock)
        self._reductions += 1
        with torch.no_grad():
            tensor.fill_(math.nan) if tensor.is_floating_point() else tensor.zero_()
        return Handle(self, tensor, reduction)

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the reductions that this rank has started and not waited for."""
        return [each.number for each in self._wires.reductions
                if self.rank in each.tensors and self.rank not in each.waited]

    def work(self, seconds: float) -> None:
        """Compute something that takes so many virtual seconds."""
        until = self.clock + seconds
        self.worked.append((self.clock, until))
        self._go_on(lambda: until)

    def backward_takes(self, seconds: float, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor; the backward through it spends `seconds` of this rank's virtual time."""
        return _SpendInBackward.apply(tensor, self, seconds)

    def _peer(self, other: int) -> int:
        other = operator.index(other)
        if not 0 <= other < self.size:
            raise Misuse('no-such-rank', f'Rank {self.rank} of {self.size} names rank {other}; there are ranks 0 to '
                                         f'{self.size - 1}.')
        if other == self.rank:
            raise Misuse('talks-to-itself', f'(It is rank {self.rank} of {self.size}.)')
        return other

    def _go_on(self, ready: Callable[[], float | None], waits_for: Callable[[], str] = str) -> None:
        """Let the others run, until it is our turn: then it is `ready()`, or later."""
        self._ready, self._waits_for = ready, waits_for
        self._control.release()
        self._turn.acquire()
        if self._thrown is not None:
            raise self._thrown
        self.clock = self._can_go_on()

    def _can_go_on(self) -> float | None:
        """The time at which this rank is the next to run, if that is known."""
        ready = self._ready()
        return None if self._ended or ready is None else max(self.clock, ready)


@dataclass(frozen=True)
class Run:
    """What came of a run."""

    results: list[Any]             #: what the function returned, by rank
    clocks: list[float]            #: virtual seconds at which the ranks ended
    worked: list[list[tuple[float, float]]]   #: by rank: from when to when it has computed
    messages: list[Message]        #: all that were sent
    reductions: list[Reduction]    #: all that were started

    @property
    def makespan(self) -> float:
        """Virtual seconds until the last rank had ended."""
        return max(self.clocks)

    @property
    def bytes_sent(self) -> list[int]:
        return [sum(message.bytes for message in self.messages if message.source == rank)
                for rank in range(len(self.clocks))]

    @property
    def messages_sent(self) -> list[int]:
        return [sum(message.source == rank for message in self.messages) for rank in range(len(self.clocks))]

    def verify_complete(self) -> None:
        """Raises `Misuse` if a message was never received or a reduction never waited for."""
        lost = [message for message in self.messages if not message.received]
        if lost:
            raise Misuse('never-received', f'Rank {lost[0].source} has sent a message to rank {lost[0].to} '
                         f'({lost[0].bytes} bytes) that is still on its way when all have ended ({len(lost)} of them).')
        for number, reduction in enumerate(self.reductions):
            for rank in reduction.tensors:
                if rank not in reduction.waited:
                    raise Misuse('never-waited', f'Rank {rank} has ended without a wait() for reduction {number}.')


def run_ranks(function: Callable, arguments: Sequence[Any], *, latency: float = 0.0, bandwidth: float = math.inf,
              time_limit: float = 30.0, strict: bool = True) -> Run:
    """Call `function(*arguments[r], rank)` on every rank r, all at the same time; `rank` is its `Rank`.

    There are as many ranks as `arguments`: a tuple each, or what is no tuple as the only argument. `latency` is in
    virtual seconds, `bandwidth` in bytes a virtual second; `time_limit`, in real seconds, ends a rank that computes
    without end. An exception of a rank comes out as it is; `Deadlock` where all wait; `Misuse` for other ways not to
    talk to each other, which include (if `strict`) messages that nobody received.
    """
    control, size = threading.Semaphore(0), len(arguments)
    wires = Wires(latency, bandwidth, size)
    ranks = [Rank(number, size, wires, control) for number in range(size)]
    results, errors = [None] * size, []

    def body(rank: Rank, given: Any) -> None:
        rank._turn.acquire()
        try:
            if rank._thrown is None:
                results[rank.rank] = function(*(given if isinstance(given, tuple) else (given,)), rank)
        except BaseException as error:
            errors.append(error)
        rank._ended = True
        control.release()

    threads = [threading.Thread(target=body, args=pair, daemon=True) for pair in zip(ranks, arguments)]
    for thread in threads:
        thread.start()
    try:
        for rank in _turns(ranks, wires):
            rank._turn.release()
            if not control.acquire(timeout=time_limit):
                raise Misuse('too-slow', f'Rank {rank.rank} has computed for {time_limit:g} seconds.')
            if errors:
                raise errors[0]
    finally:
        _end(ranks, threads)
    run = Run(results, [rank.clock for rank in ranks], [rank.worked for rank in ranks], wires.messages,
              wires.reductions)
    if strict:
        run.verify_complete()
    return run


def _turns(ranks: list[Rank], wires: Wires) -> Iterator[Rank]:
    """Whose turn it is, until all have ended: whoever is behind the others, once all that left before has left."""
    while not all(rank._ended for rank in ranks):
        able = [(time, rank.rank) for rank in ranks if (time := rank._can_go_on()) is not None]
        if wires.advance(until=min(able)[0] if able else math.inf):
            continue
        if not able:   # thrown where the first one waits, so that the traceback shows the line
            waiting = [rank for rank in ranks if not rank._ended]
            waiting[0]._thrown = Deadlock({rank.rank: rank._waits_for() for rank in waiting},
                                          [rank.rank for rank in ranks if rank._ended], len(wires.messages))
        yield waiting[0] if not able else ranks[min(able)[1]]


def _end(ranks: list[Rank], threads: list[threading.Thread]) -> None:
    """End all that have not ended, after one has failed."""
    for rank, thread in zip(ranks, threads):
        if not rank._ended:
            rank._thrown = _Stopped()
            rank._turn.release()
            thread.join(JOIN)


class _Stopped(BaseException):
    """Another rank has failed."""


class _SpendInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, rank: Rank, seconds: float) -> torch.Tensor:
        ctx.rank, ctx.seconds = rank, seconds
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        ctx.rank.work(ctx.seconds)
        return gradient, None, None
