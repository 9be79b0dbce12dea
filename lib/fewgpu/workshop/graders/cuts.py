"""Cuts of a chain of layers into stages: the best of them, by two ways that share nothing; and what is none."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, combinations
from numbers import Integral
from typing import Any

from fewgpu.workshop.practice.bars import bars

Costs = Sequence[float]
Balance = list[int]
Case = tuple[tuple[float, ...], int]   # costs, stages
ROUNDING = Fraction(1, 10**9)


def all_cuts(layers: int, stages: int) -> Iterator[Balance]:
    """Every number of layers a stage that is possible."""
    for ends in combinations(range(1, layers), stages - 1):
        yield [end - start for start, end in zip((0, *ends), (*ends, layers))]


def stage_costs(costs: Costs, balance: Balance) -> list[Fraction]:
    """The sum of each stage, without rounding."""
    ends = list(accumulate(balance))
    return [sum(map(Fraction, costs[end - count:end]), Fraction()) for count, end in zip(balance, ends)]


def least_slowest(costs: Costs, stages: int) -> Fraction:
    """The slowest stage of the best cut: of all sums of neighbours the least that will do as a limit."""
    sums = list(accumulate(map(Fraction, costs), initial=Fraction()))
    candidates = sorted({end - start for k, start in enumerate(sums) for end in sums[k + 1:]})
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _stages_needed(costs, candidates[middle]) <= stages else (middle + 1, high)
    return candidates[low]


def _stages_needed(costs: Costs, limit: Fraction) -> float:
    """How many stages there are if each takes layers as long as it stays within the limit."""
    stages, filled = 1, Fraction()
    for cost in map(Fraction, costs):
        if cost > limit:
            return float('inf')
        stages, filled = (stages, filled + cost) if filled + cost <= limit else (stages + 1, cost)
    return stages


def is_best_by(price: Callable[[list[Fraction]], Any], costs: Costs, stages: int, balance: Balance) -> bool:
    """Is it a cut with the least price of all?"""
    least = min(price(stage_costs(costs, cut)) for cut in all_cuts(len(costs), stages))
    return price(stage_costs(costs, balance)) <= least + abs(least) * ROUNDING


def no_cut(case: Case, answer: Any) -> str:
    """What keeps it from being a cut of the chain, in a sentence."""
    layers, stages = len(case[0]), case[1]
    if not isinstance(answer, list) or not all(isinstance(count, Integral) for count in answer):
        return 'It is no list of whole numbers.'
    if len(answer) != stages:
        return f'There are {len(answer)} numbers for {stages} stage{"s" * (stages != 1)}.'
    if min(answer) < 1:
        return f'Stage {answer.index(min(answer))} has {min(answer)} layers.'
    return f'The stages have {sum(answer)} of the {layers} layers.' if sum(answer) < layers else (
        f'The stages have {sum(answer)} layers together, and the model has {layers}.' if sum(answer) > layers else '')


def not_best(case: Case, answer: Any) -> str:
    if found := no_cut(case, answer):
        return found
    takes, least = max(stage_costs(case[0], answer)), least_slowest(*case)
    enough = takes <= least * (1 + ROUNDING)
    return '' if enough else f'The slowest stage takes {float(takes):g}, and {float(least):g} is possible.'


def best(case: Case) -> Balance:
    """A best cut, of all."""
    return min(all_cuts(len(case[0]), case[1]), key=lambda cut: max(stage_costs(case[0], cut)))


def drawn(case: Case, answer: Any) -> str:
    """A line a stage, as long as the stage takes."""
    times = [] if no_cut(case, answer) else [float(time) for time in stage_costs(case[0], answer)]
    return bars((f'stage {stage}', time, f'{time:g}') for stage, time in enumerate(times))


class TooManySteps(BaseException):
    """(No Exception: `except Exception` does not hide it.)"""


class Counted(float):
    """A cost whose additions, subtractions and comparisons are counted; what comes out is counted, too."""

    left = 0   # how many are still allowed, of all of them together


def _counted(name: str) -> Callable[[Counted, Any], Any]:
    plain = getattr(float, name)

    def operation(self: Counted, other: Any) -> Any:
        Counted.left -= 1
        if Counted.left < 0:
            raise TooManySteps
        result = plain(self, other)
        return Counted(result) if type(result) is float else result
    return operation


for _name in ('__add__', '__radd__', '__sub__', '__rsub__', '__lt__', '__le__', '__gt__', '__ge__'):
    setattr(Counted, _name, _counted(_name))
