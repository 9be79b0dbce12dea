"""SHARP: many models at once on few devices, one shard at a time of each (Hydra, arXiv 2110.08633).

    trained = sharp([Job(Spilled(...), batches, epochs=3), Job(Spilled(...), batches, epochs=3)], devices)
    trained.losses[0]       # of the first model, step by step

One large model cannot keep several devices busy, for its shards wait for each other; a shard of another
model does not. Who works on what is decided by `fewgpu.spill.lrtf`, here in the workers of real (or virtual)
devices, from the seconds that units were measured to take. A device holds the shard that it computes with and
the next one, which is loaded meanwhile; gradients leave beside.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.spill.lrtf import Chain, Done, Lrtf, Shared
from fewgpu.rng import StepSeed
from fewgpu.spill.spilled import Spilled, draw_seed
from fewgpu.spill.units import Behind, MiniBatch, Unit, Visit, thread_beside


@dataclass
class Job:
    """A model and what it is to be trained on: `batches` are (x, y), iterated anew in every epoch.

    `seed` is that of a generator of the model's own for its random streams (None: drawn from torch's), so
    that its results do not depend on who trains beside it. (Its `device` and `prefetch` are not used here.)
    """

    model: Spilled
    batches: Sequence[tuple[Any, Any]]
    epochs: int = 1
    name: str = ''
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.batches, Sequence):
            raise TypeError(f'the mini-batches of a job are a list of (x, y), for their number is asked for, and they '
                            f'are run through once an epoch; not a {type(self.batches).__name__}')

        if not isinstance(self.epochs, int) or self.epochs < 0:
            raise ValueError(f'the epochs of a job are a whole number, at least 0, not {self.epochs!r}')

    @property
    def steps(self) -> int:
        """Mini-batches over all epochs."""
        return len(self.batches) * self.epochs

    def feed(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self.epochs):
            yield from self.batches


@dataclass(frozen=True)
class Trained:
    """What came of it: `losses` of every job, a tensor a step; `shared`: what devices did when (seconds);
    `visits`: loads and stores too, job by job, in seconds of the same clock."""

    losses: list[list[torch.Tensor]]
    shared: Shared
    visits: list[list[Visit]]


def sharp(jobs: Sequence[Job], devices: Sequence[Device], *, prefetch: bool = True) -> Trained:
    """Train all jobs to their end. Each model's results are those of training it alone.

    An error in any unit ends all, when those under way are done; it names model, shard and the learner's
    line.
    Raises ValueError for two jobs with one model or one device twice.
    """
    if not devices or len(set(devices)) < len(devices):
        raise ValueError('models are shared by devices, one or more, each of them once')
    if len({job.model.module for job in jobs}) < len(jobs):
        raise ValueError('every job needs a model of its own: two of them train the same one')
    with contextlib.ExitStack() as turns, torch.enable_grad():
        for job in sorted(jobs, key=lambda job: id(job.model.turn)):   # callers in one order: no circle
            turns.enter_context(job.model.turn)
        return _Run(jobs, devices, prefetch).go()


@dataclass
class _Training:
    """One job on its way."""

    job: Job
    name: str
    generator: torch.Generator
    feed: Iterator[tuple[Any, Any]]
    under_way: dict[int, MiniBatch] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)

    @classmethod
    def of(cls, index: int, job: Job) -> '_Training':
        seed = draw_seed() if job.seed is None else job.seed
        return cls(job, job.name or f'model {index}', torch.Generator().manual_seed(seed), job.feed())

    def unit(self, number: int, context: Context) -> tuple[MiniBatch, Unit]:
        """The unit of this number and its mini-batch, which begins if it is new."""
        units = self.job.model.units
        step, place = divmod(number, len(units))
        if step not in self.under_way:
            if (pair := next(self.feed, None)) is None:
                raise ValueError(f'{self.name} has {step} mini-batches, and said {self.job.steps}')
            context = replace(context, seed=StepSeed(draw_seed(self.generator)))
            self.under_way[step] = self.job.model.begin(*pair, context, self.visits, self.name)
        return self.under_way[step], units[place]

    def finish(self, number: int) -> None:
        step, place = divmod(number, len(self.job.model.units))
        if place == len(self.job.model.units) - 1:
            self.losses.append(self.under_way.pop(step).loss)


Ahead = tuple[tuple[int, int], Future] | None   # (model, unit), and its shard on the way


class _Run:
    """What the workers of all devices share."""

    def __init__(self, jobs: Sequence[Job], devices: Sequence[Device], prefetch: bool) -> None:
        self._devices, self._prefetch = devices, prefetch
        self._context = Context.capture(devices, seed=0)
        self._models = [_Training.of(index, job) for index, job in enumerate(jobs)]
        self._chains = tuple(Chain([None] * len(job.model.units), job.steps) for job in jobs)
        self._lrtf, self._changed = Lrtf(self._chains), threading.Condition()
        self._done: list[Done] = []
        self._loaders, self._behinds = [], []   # threads beside each device
        self._working, self._error = len(devices), None

    def go(self) -> Trained:
        with contextlib.ExitStack() as beside:
            for device in self._devices:
                self._loaders.append(beside.enter_context(thread_beside(device, 'fewgpu loader')))
                self._behinds.append(beside.enter_context(Behind(device, self._prefetch)))
            for index, device in enumerate(self._devices):
                device.submit(partial(self._work, index))
            self._join()
            if self._error is not None:
                raise self._error
        first = min((one.start for one in self._done), default=0.0)
        done = tuple(one._replace(start=one.start - first, end=one.end - first) for one in self._done)
        visits = [[visit._replace(start=visit.start - first, end=visit.end - first) for visit in model.visits]
                  for model in self._models]
        names = tuple(device.name for device in self._devices)
        return Trained([model.losses for model in self._models], Shared(done, self._chains, names), visits)

    def _join(self) -> None:
        """Until no worker is in a unit: layers hold the data of a device meanwhile."""
        with self._changed:
            while self._working:
                try:
                    self._changed.wait(1.0)   # Ctrl-C comes through in between
                except KeyboardInterrupt as error:
                    self._error = self._error or error

    def _work(self, d: int) -> None:
        """In the worker of a device."""
        try:
            self._compute(d)
            self._behinds[d].wait()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _compute(self, d: int) -> None:
        device, ahead = self._devices[d], None
        while (taken := self._take(d)) is not None:
            batch, unit = self._unit(taken)
            copies = _arrived(ahead, taken) or batch.promote(unit, device)[1]
            ahead = self._load_next(d, taken) if self._prefetch else None
            start = time.perf_counter()
            gradients = batch.compute(unit, copies, device)
            end = time.perf_counter()
            del copies   # before anything is waited for
            self._behinds[d](batch, unit, gradients, device)
            with self._changed:
                self._lrtf.finish(taken[0], end - start)
                self._models[taken[0]].finish(taken[1])
                self._done.append(Done(d, *taken, start, end))
                self._changed.notify_all()
        _arrived(ahead, None)

    def _take(self, d: int) -> tuple[int, int] | None:
        """What the device computes next, as soon as there is something; None at the end."""
        with self._changed:
            while self._error is None and not self._lrtf.over:
                if (taken := self._lrtf.take(d)) is not None:
                    return taken
                self._changed.wait(1.0)   # all models are in the hands of other devices
        return None

    def _load_next(self, d: int, taken: tuple[int, int]) -> Ahead:
        with self._changed:
            chosen = self._lrtf.choose(d)
        if chosen is None:
            return None
        batch, unit = self._unit(chosen)
        if chosen[0] == taken[0] and unit.shard == self._unit(taken)[1].shard:
            return None   # which is to be updated first
        return chosen, self._loaders[d].submit(lambda: batch.promote(unit, self._devices[d])[1])

    def _unit(self, which: tuple[int, int]) -> tuple[MiniBatch, Unit]:
        model = self._models[which[0]]
        try:
            with self._changed:
                return model.unit(which[1], self._context)
        except BaseException as error:
            error.add_note(f'in the mini-batches of {model.name}')
            raise


def _arrived(ahead: Ahead, wanted: tuple[int, int] | None) -> list[torch.Tensor] | None:
    """The shard that was on its way, if it is the one that is wanted; else its memory is free again."""
    if ahead is None:
        return None
    copies = ahead[1].result()   # wait in any case: two shards at most are on a device
    return copies if ahead[0] == wanted else None
