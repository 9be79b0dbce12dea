"""For the grader of exercise 15: models that share devices, in virtual time, under any rule for who is next."""

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import shown
from fewgpu.workshop.practice.disk import DIGITS
from fewgpu.workshop.practice.plain import number
from fewgpu.workshop.practice.timeline import timeline

Units = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class State:
    """What a device that is free sees."""

    units: Units
    done: tuple[int, ...]
    busy: tuple[int, ...]

    def left(self, m: int) -> float:
        return sum(self.units[m][self.done[m]:])

    @property
    def eligible(self) -> list[int]:
        return [m for m in range(len(self.units)) if m not in self.busy and self.done[m] < len(self.units[m])]

    def __str__(self) -> str:
        units = ', '.join('[' + ', '.join(f'{seconds:g}' for seconds in each) + ']' for each in self.units)
        return f'next_model([{units}],\n           done={list(self.done)}, busy={list(self.busy)})'


def longest(state: State) -> int | None:
    """The rule."""
    return by(state, state.left)


def by(state: State, measure: Callable[[int], float], among: Collection[int] | None = None) -> int | None:
    """The model of which that is most, the first of these."""
    return max(state.eligible if among is None else among, key=lambda m: (measure(m), -m), default=None)


def states(random: Random) -> list[State]:
    """Smallest first; among them some in which models take equally long."""
    fixed = [State(((2,),), (0,), ()), State(((2,),), (1,), ()), State(((2,), (3,)), (0, 0), ()),
             State(((3,), (2,)), (0, 0), ()), State(((2,), (2,)), (0, 0), ()), State(((2,), (3,)), (0, 0), (1,)),
             State(((2,), (3,)), (0, 0), (0, 1)), State(((4, 4), (1, 1, 1), (2, 3, 2)), (1, 0, 0), ()),
             State(((4, 4), (1, 1, 1), (2, 3, 2)), (1, 0, 0), (2,)),
             State(((4, 4), (1, 1, 1), (2, 3, 2)), (2, 3, 1), (2,))]
    drawn = []
    for _ in range(60):
        units = tuple(tuple(random.randrange(1, 9) for _ in range(2 * random.randrange(1, 4) - 1))
                      for _ in range(random.randrange(2, 6)))
        done = tuple(random.randrange(len(each) + 1) for each in units)
        busy = tuple(m for m in range(len(units)) if done[m] < len(units[m]) and random.random() < 0.3)
        drawn.append(State(units, done, busy))
    return fixed + sorted(drawn, key=lambda state: len(state.units))


@dataclass
class Played:
    """Who worked on what, when: (device, model, from, to)."""

    devices: int
    spans: list[tuple[int, int, float, float]] = field(default_factory=list)

    @property
    def makespan(self) -> float:
        return max((end for *_, end in self.spans), default=0.0)

    def picture(self, until: float) -> str:
        return timeline([(f'device {device}', [(start, end, DIGITS[model % 36]) for d, model, start, end in self.spans
                                               if d == device]) for device in range(self.devices)], until)


def play(rule: Callable[[State], Any], units: Units, devices: int) -> Played:
    """All models to their end. What ends at one moment has ended before the next device asks.

    Raises Failure if the rule gives a model that cannot run, or none while one could.
    """
    done, busy, now, played = [0] * len(units), {}, 0.0, Played(devices)
    ends: list[tuple[float, int]] = []   # when which device is done
    while True:
        for device in range(devices):
            state = State(units, tuple(done), tuple(sorted(busy.values())))
            if device in busy or not state.eligible:
                continue
            model = number(rule(state))
            if not isinstance(model, int) or model not in state.eligible:
                raise Failure(f'Device {device} is free, and of the models {state.eligible} one may run.',
                              case=f'{state}\nyours     {model}')
            seconds = units[model][done[model]]
            busy[device] = model
            played.spans.append((device, model, now, now + seconds))
            heapq.heappush(ends, (now + seconds, device))
        if not ends:
            return played
        now = ends[0][0]
        while ends and ends[0][0] == now:
            done[busy.pop(heapq.heappop(ends)[1])] += 1


def equal_units(random: Random) -> list[tuple[Units, int]]:
    """Models whose units all take one second, and devices; small ones first."""
    fixed = [(((1,), (1,)), 1), (((1,), (1,), (1, 1)), 2), (((1,), (1,), (1,), (1, 1, 1)), 2)]
    drawn = [(tuple((1,) * (2 * random.randrange(1, 7) - 1) for _ in range(models)), devices)
             for models, devices in ((3, 2), (4, 2), (4, 3), (5, 2), (6, 3), (7, 4), (8, 4), (9, 3), (10, 4), (12, 5))]
    return fixed + drawn


def least(units: Units, devices: int) -> int:
    """The shortest time of chains of units of one second (Hu): the longest chain, or all devices busy to the end."""
    return max(max(map(len, units)), -(-sum(map(len, units)) // devices))


def told(state: State, got: Any, wanted: Any) -> str:
    left = ', '.join(f'model {m} {state.left(m):g}' for m in range(len(state.units)))
    yours = '' if isinstance(got, BaseException) else f'\nyours     {shown(got)}\nexpected  {wanted}'
    return f'{state}\nseconds left: {left}{yours}'


def _most(measure: Callable[[State, int], float]) -> Callable[[State], int | None]:
    return lambda state: by(state, lambda m: measure(state, m))


def _among(models: Callable[[State], Collection[int]]) -> Callable[[State], int | None]:
    return lambda state: by(state, state.left, models(state))


WRONG_RULES: list[tuple[str, Callable[[State], Any]]] = [
    ('shortest-first', _most(lambda state, m: -state.left(m))),
    ('in-turn', _most(lambda state, m: 0)),
    ('counts-units', _most(lambda state, m: len(state.units[m]) - state.done[m])),
    ('whole-time', _most(lambda state, m: sum(state.units[m]))),
    ('next-unit', _most(lambda state, m: state.units[m][state.done[m]])),
    ('longest-unit', _most(lambda state, m: max(state.units[m][state.done[m]:]))),
    ('next-left-out', _most(lambda state, m: sum(state.units[m][state.done[m] + 1:]))),
    ('already-running', _among(lambda state: [m for m in range(len(state.units)) if state.left(m)])),
    ('already-running', _among(lambda state: range(len(state.units)))),
    ('at-its-end', _among(lambda state: [m for m in range(len(state.units)) if m not in state.busy])),
    ('last-of-equals', lambda state: max(state.eligible, key=lambda m: (state.left(m), m), default=None)),
    ('place-for-number', lambda state: state.eligible.index(longest(state)) if state.eligible else None),
    ('zero-for-none', lambda state: longest(state) or None),
    ('zero-for-none', lambda state: longest(state) or 0),
    ('seconds-for-model', lambda state: max(map(state.left, state.eligible), default=None)),
]
