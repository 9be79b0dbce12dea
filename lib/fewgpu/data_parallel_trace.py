"""What a DataParallel does in a step, for its trace: only if that was asked for.

Two rows a rank: the thread that computes (forward, backward, update), and the thread that averages gradients, bucket
by bucket, beside it:

    rank 0        F0 B0 ............ | waits | U0
    rank 0 link      A0  A1   A2    A3                    A0: agree on rows; then a bucket each
"""

import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fewgpu.collectives import Group, all_gather
from fewgpu.schedule import Message, Op
from fewgpu.trace import EXCHANGE
from fewgpu.trace_files import AVERAGES, AVERAGING, BUCKET, RankTrace, Recorded, Row, write
from fewgpu.trace_save import run_id

_ROUNDS = 3   # exchanges that compare clocks after a step


class Recorder:
    """Notes the spans of the latest step. On a GPU each note waits for what the thread has enqueued there."""

    def __init__(self, parameters: Sequence[torch.Tensor], group: Group) -> None:
        self._own, self._group = {id(parameter) for parameter in parameters}, group
        self._device = parameters[0].device
        self._step, self._over = 0, True
        self._meetings: deque[tuple[int, float, float]] = deque(maxlen=4096)
        self._met = 0
        self._begin()
        alive = weakref.ref(self)   # these hooks are of all optimizers there are
        hooks = [register_optimizer_step_pre_hook(lambda optimizer, *_: _ask(alive, '_update_begins', optimizer)),
                 register_optimizer_step_post_hook(lambda optimizer, *_: _ask(alive, '_update_ends', optimizer))]
        weakref.finalize(self, lambda: [hook.remove() for hook in hooks])

    def _begin(self) -> None:
        self._work: list[Recorded] = []
        self._exchanges: list[Recorded] = []
        self._forwards = self._backwards = self._updates = 0
        self._backward = self._waits = self._updating = None   # when each began
        self._free = self._now()                               # the thread that averages

    def _now(self) -> float:
        if self._device.type == 'cuda':
            torch.cuda.current_stream().synchronize()
        return time.perf_counter()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Round a forward; the first one after a backward that averaged, and an update, begins a step."""
        if self._over:
            self._step, self._over = self._step + 1, False
            self._begin()
        start = self._now()
        yield
        self._work.append(Recorded(Op('F', 0, self._forwards), start, self._now()))
        self._forwards += 1

    def backward(self, begin: Callable[[], None] | None) -> None:
        """A backward begins (in its thread), and calls `begin` if it averages."""
        if self._backward is None:
            self._backward = self._now()
            Variable._execution_engine.queue_callback(self._backward_ends)
        if begin:
            begin()   # queues what ends the averaging
            Variable._execution_engine.queue_callback(self._averaged)

    def _backward_ends(self) -> None:
        if self._backward is not None:
            self._waits = self._now()
            self._work.append(Recorded(Op('B', 0, self._backwards), self._backward, self._waits))
            self._backward, self._backwards = None, self._backwards + 1

    def _averaged(self) -> None:
        if self._waits is not None:
            self._work.append(Recorded(Op('recv', 0, self._backwards - 1, Message(AVERAGES, 0, 0, self._backwards - 1)),
                                       self._waits, self._now()))
            self._waits, self._over = None, True

    def exchange(self, job: Callable[[], Any], asked: float, size: int) -> None:
        """In the thread that averages: do what was asked for at that time, with all others."""
        number, start = len(self._exchanges) // 2, self._now()
        self._exchanges.append(Recorded(Op('recv', 0, number, Message(BUCKET, 0, 0, number)), min(self._free, start),
                                        start, arrived=asked))
        self._free = self._meet(start, job)
        self._exchanges.append(Recorded(Op(EXCHANGE, 0, number), start, self._free, size=size))

    def sat_out(self, exchanges: int) -> None:
        """The others have trained a step, with so many exchanges in which this rank had no rows: steps and exchanges
        are counted alike on all ranks."""
        self._step += 1
        self._met += exchanges
        self._begin()

    def compare_clocks(self) -> None:
        """All ranks are just through with the same all-reduce, so they come to this exchange at nearly the same time,
        and it tells best how their clocks differ: a slow rank makes others wait in all exchanges before."""
        pieces = [torch.zeros(1, device=self._device) for _ in range(self._group.size)]
        for _ in range(_ROUNDS):
            self._meet(self._now(), partial(all_gather, pieces, self._group))

    def _meet(self, start: float, job: Callable[[], Any]) -> float:
        """Do with all others what began at `start`; when it ended."""
        job()
        end = self._now()
        self._meetings.append((self._met, start, end))
        self._met += 1
        return end

    def _update_begins(self) -> None:
        self._updating = self._now()

    def _update_ends(self) -> None:
        if self._updating is not None:
            self._work.append(Recorded(Op('U', 0, self._updates), self._updating, self._now()))
            self._updating, self._updates = None, self._updates + 1

    def of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Does the optimizer train these parameters?"""
        return any(id(parameter) in self._own for group in optimizer.param_groups for parameter in group['params'])

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the trace of the latest step. Raises ValueError if there was none, or none with rows of this rank."""
        if not self._work:
            raise ValueError('there is no trace yet: let the model train a step before save_trace, with rows on every '
                             'rank')
        rank, members = dist.get_rank(), tuple(dist.get_process_group_ranks(self._group.process_group))
        rows = [Row(2 * self._group.rank, f'rank {rank}', tuple(self._work)),
                Row(2 * self._group.rank + 1, f'rank {rank} link', tuple(self._exchanges))]
        return write(RankTrace(
            rank, members, members, run_id(), self._step,
            {'name': AVERAGING, 'stages': 1, 'micro_batches': self._forwards}, tuple(rows),
            meetings=[(members, list(self._meetings))] if len(members) > 1 else []), folder)


def _ask(alive: 'weakref.ref[Recorder]', what: str, optimizer: torch.optim.Optimizer) -> None:
    recorder = alive()
    if recorder is not None and recorder.of(optimizer):
        getattr(recorder, what)()
