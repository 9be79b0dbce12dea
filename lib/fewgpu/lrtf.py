"""Sharded-LRTF: which model a free device works on next, and when everything would be done (Hydra).

Many models are trained at once on a few devices. A model is a chain of units, one at a time; a device that
is free takes the model with the longest remaining time (LRTF) among those that no device works on, and while it
computes, the model that it will take next is chosen in the same way, so that its shard can be loaded meanwhile;
the model that is computed with stays a candidate. A device that would idle takes a model that was chosen
for another one: no device waits while there is something to do.

Time that remains counts unit by unit. (The authors' code counts the mini-batch under way as a whole.) With units
of equal length and no transfers that is Hu's rule (Operations Research 9, 1961), which nothing beats; for others
Graham's bound holds: at most 2 - 1/m times the shortest time on m devices.

`Lrtf` decides, here for `plan`, in virtual time, and in `fewgpu.sharp` for real devices. Imports no torch.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from fewgpu.schedule import Op
from fewgpu.trace import Span, Timeline


@dataclass(frozen=True)
class Chain:
    """One model: seconds of every unit of a mini-batch (None: not known yet), and mini-batches over all epochs.

    A mini-batch has 2 S - 1 units; `loads` are the seconds in which the shard of each comes to a device.
    Raises ValueError for a number of units that is even, or negative seconds.
    """

    units: Sequence[float | None]
    batches: int = 1
    loads: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if len(self.units) % 2 == 0 or self.batches < 0 or min((s for s in self.units if s is not None), default=0) < 0:
            raise ValueError(f'a model has 2 S - 1 units of at least 0 s and mini-batches, not {self}')
        if self.loads is not None and (len(self.loads) != len(self.units) or min(self.loads) < 0):
            raise ValueError(f'a model has one load of at least 0 s for each unit, not {self.loads}')

    def load(self, number: int) -> float:
        return self.loads[number % len(self.units)] if self.loads else 0.0

    def shard(self, number: int) -> int:
        """That the unit of this number works with."""
        number %= len(self.units)
        return min(number, len(self.units) - 1 - number)


class Done(NamedTuple):
    """One unit of one model, computed on a device from `start` to `end` (seconds); its load ended before."""

    device: int
    model: int
    number: int   #: of the unit, counted over all mini-batches
    start: float
    end: float


@dataclass
class Lrtf:
    """Decisions only: no clock, no device. Models and devices are numbers."""

    chains: Sequence[Chain]
    _known: list[list[float | None]] = field(init=False)
    _done: list[int] = field(init=False)                              # units, of every model
    _running: dict[int, int] = field(init=False, default_factory=dict)   # model -> device
    _chosen: dict[int, int] = field(init=False, default_factory=dict)    # device -> model, for its next unit

    def __post_init__(self) -> None:
        self._known = [list(chain.units) for chain in self.chains]
        self._done = [0] * len(self.chains)

    def remaining(self, model: int) -> float:
        """Seconds. A unit that has never run counts as the mean of the model's others, or of all."""
        known, units = self._known[model], len(self._known[model])
        measured = [s for s in known if s is not None] or [
            s for other in self._known for s in other if s is not None]
        guess = sum(measured) / len(measured) if measured else 1.0
        seconds = [guess if s is None else s for s in known]
        batches, number = divmod(self._done[model], units)
        return sum(seconds) * (self.chains[model].batches - batches) - sum(seconds[:number])

    def left(self, model: int) -> int:
        """Units."""
        return self.chains[model].batches * len(self.chains[model].units) - self._done[model]

    @property
    def over(self) -> bool:
        return not any(map(self.left, range(len(self.chains))))

    def take(self, device: int) -> tuple[int, int] | None:
        """(model, unit) that the device computes now: what was chosen for it, or else the longest."""
        model = self._chosen.pop(device, None)
        if model is None:
            free = [m for m in range(len(self.chains)) if self.left(m) and m not in self._running]
            model = self._longest([m for m in free if m not in self._chosen.values()] or free)
        if model is None:
            return None
        self._chosen = {d: m for d, m in self._chosen.items() if m != model}
        self._running[model] = device
        return model, self._done[model]

    def choose(self, device: int) -> tuple[int, int] | None:
        """(model, unit) for its next unit, while it computes; None if there is nothing left to choose."""
        own = next(model for model, where in self._running.items() if where == device)
        model = self._longest([m for m in range(len(self.chains)) if m not in self._chosen.values() and (
            self.left(m) if m not in self._running else m == own and self.left(m) > 1)], own)
        if model is None:
            return None
        self._chosen[device] = model
        return model, self._done[model] + (model == own)

    def finish(self, model: int, seconds: float) -> None:
        """The unit that was running took so long."""
        units = len(self._known[model])
        self._known[model][self._done[model] % units] = seconds
        self._done[model] += 1
        del self._running[model]

    def _longest(self, models: Sequence[int], own: int | None = None) -> int | None:
        """`own` is computed with: what remains of it does not count the unit under way."""
        def remains(model: int) -> float:
            under_way = self._known[model][self._done[model] % len(self._known[model])] if model == own else None
            return self.remaining(model) - (under_way or 0.0)
        return max(models, key=lambda model: (remains(model), -model), default=None)


@dataclass(frozen=True)
class Shared:
    """What devices did for the models, in the order in which units ended: planned or real."""

    done: tuple[Done, ...]
    chains: tuple[Chain, ...]
    names: tuple[str, ...]   #: of the devices

    @cached_property
    def timeline(self) -> Timeline:
        """A row a device; the stage of an operation is the shard, its micro-batch the model."""
        rows = [[] for _ in self.names]
        for one in sorted(self.done, key=lambda one: one.start):
            chain = self.chains[one.model]
            kind = 'F' if one.number % len(chain.units) < len(chain.units) // 2 else 'B'
            rows[one.device].append(Span(Op(kind, chain.shard(one.number), one.model), one.start, one.end))
        return Timeline(tuple(map(tuple, rows)), self.names)

    @property
    def makespan(self) -> float:
        """Seconds."""
        return max((one.end for one in self.done), default=0.0)

    @property
    def utilisation(self) -> float:
        """The share of the makespan in which devices compute."""
        return 1.0 - self.timeline.bubble


def plan(chains: Sequence[Chain], devices: int, *, prefetch: bool = True) -> Shared:
    """When every unit would run. All seconds must be known.

    With `prefetch` the load of a device's next unit begins when the one before begins, unless it is the same
    shard of the same model, which has to be updated first. Gradients leave beside, and take no time.
    """
    if devices < 1 or any(s is None for chain in chains for s in chain.units):
        raise ValueError('a plan needs at least one device, and the seconds of all units')
    return _Plan(chains, devices, prefetch).run()


class _Plan:
    """The devices in virtual time: a heap of what happens next. Ends come before starts."""

    def __init__(self, chains: Sequence[Chain], devices: int, prefetch: bool) -> None:
        self._chains, self._lrtf, self._prefetch = chains, Lrtf(chains), prefetch
        self._idle = set(range(devices))
        self._loaded: dict[int, tuple[tuple[int, int], float]] = {}   # device -> (model, unit), when
        self._events: list[tuple] = []                                # (time, is a start, device, model, unit, start)
        self._done: list[Done] = []

    def run(self) -> Shared:
        names = tuple(f'device {device}' for device in sorted(self._idle))
        self._take(0.0)
        while self._events:
            now, starts, device, model, number, start = heapq.heappop(self._events)
            seconds = self._chains[model].units[number % len(self._chains[model].units)]
            if starts:
                heapq.heappush(self._events, (now + seconds, False, device, model, number, now))
                self._choose(now, device, model, number)
                continue
            self._done.append(Done(device, model, number, start, now))
            self._lrtf.finish(model, seconds)
            self._idle.add(device)
            if not (self._events and self._events[0][:2] == (now, False)):   # all that end now have ended
                self._take(now)
        return Shared(tuple(self._done), tuple(self._chains), names)

    def _take(self, now: float) -> None:
        for device in sorted(self._idle):
            if (taken := self._lrtf.take(device)) is not None:
                self._idle.remove(device)
                ahead, ready = self._loaded.pop(device, (None, 0.0))
                if ahead != taken:
                    ready = now + self._chains[taken[0]].load(taken[1])
                heapq.heappush(self._events, (max(now, ready), True, device, *taken, 0.0))

    def _choose(self, now: float, device: int, model: int, number: int) -> None:
        if self._prefetch and (chosen := self._lrtf.choose(device)) is not None:
            chain = self._chains[chosen[0]]
            if chosen[0] != model or chain.shard(chosen[1]) != chain.shard(number):
                self._loaded[device] = chosen, now + chain.load(chosen[1])
