"""Cuts of a chain of layers into stages: the best of them, by two ways that share nothing, and popular worse ones."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, combinations
from numbers import Integral
from typing import Any

Costs = Sequence[float]
Balance = list[int]
Case = tuple[tuple[float, ...], int]   # costs, stages


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


def same_numbers(costs: Costs, stages: int, *, rest: str = 'first') -> Balance:
    """The same number of layers for every stage; the `rest` goes to the first ones, the last ones, or the very last.

    Or all have the next greater number, and the last has what remains, if anything does.
    """
    least, more = divmod(len(costs), stages)
    if rest == 'all in last':
        return [least] * (stages - 1) + [least + more]
    if rest == 'last has less':
        most = least + (more > 0)
        return [most] * (stages - 1) + [len(costs) - most * (stages - 1)]
    balance = [least + 1] * more + [least] * (stages - more)
    return balance if rest == 'first' else balance[::-1]


def filled(costs: Costs, stages: int, *, over: str, again: bool) -> Balance:
    """Stage by stage, layers are taken until the average is reached: `over` it, `under` it, or `near` it.

    `again`: the average of what is left for the stages that are left, after each stage.
    """
    balance, start, target = [], 0, sum(costs) / stages
    for left in range(stages - 1, 0, -1):
        if again:
            target = sum(costs[start:]) / (left + 1)
        end, last = start + 1, len(costs) - left   # there has to be a layer for each of the others
        while end < last and _goes_on(sum(costs[start:end]), costs[end], target, over):
            end += 1
        balance.append(end - start)
        start = end
    return [*balance, len(costs) - start]


def _goes_on(taken: float, cost: float, target: float, over: str) -> bool:
    if over == 'over':
        return taken < target
    return taken + cost <= target if over == 'under' else abs(taken + cost - target) < abs(taken - target)


def at_shares(costs: Costs, stages: int, *, near: bool) -> Balance:
    """Stage k ends where k / stages of all the work is done (or nearest to it)."""
    sums, ends = list(accumulate(costs)), []
    for k in range(1, stages):
        share = sums[-1] * k / stages
        first, last = (ends[-1] if ends else 0) + 1, len(costs) - (stages - k)
        places = range(first, last + 1)
        ends.append(min(places, key=lambda end: abs(sums[end - 1] - share)) if near else
                    next((end for end in places if sums[end - 1] >= share), last))
    return [end - start for start, end in zip([0, *ends], [*ends, len(costs)])]


def dealt_out(costs: Costs, stages: int) -> Balance:
    """The costliest layers first, each to the stage that has least to do: no cut of a chain at all."""
    loads, counts = [0.0] * stages, [0] * stages
    for cost in sorted(costs, reverse=True):
        stage = loads.index(min(loads))
        loads[stage] += cost
        counts[stage] += 1
    return counts


def halved(costs: Costs, stages: int) -> Balance:
    """Cut into two as evenly as can be, and each part again."""
    if stages == 1:
        return [len(costs)]
    left = stages // 2
    places = range(left, len(costs) - (stages - left) + 1)
    end = min(places, key=lambda place: abs(sum(costs[:place]) - sum(costs) * left / stages))
    return halved(costs[:end], left) + halved(costs[end:], stages - left)


def is_best_by(price: Callable[[list[Fraction]], Any], costs: Costs, stages: int, balance: Balance) -> bool:
    """Is it a cut with the least price of all?"""
    least = min(price(stage_costs(costs, cut)) for cut in all_cuts(len(costs), stages))
    return price(stage_costs(costs, balance)) == least


def no_cut(case: Case, answer: Any) -> str:
    """What keeps it from being a cut of the chain, in a sentence."""
    layers, stages = len(case[0]), case[1]
    if not isinstance(answer, list) or not all(isinstance(count, Integral) for count in answer):
        return 'It is no list of whole numbers.'
    if len(answer) != stages:
        return f'There are {len(answer)} numbers for {stages} stage{"s" * (stages != 1)}.'
    if min(answer) < 1:
        return f'Stage {answer.index(min(answer))} has {min(answer)} layers.'
    return f'They are {sum(answer)} layers together, and the model has {layers}.' if sum(answer) != layers else ''


def not_best(case: Case, answer: Any, best: Fraction) -> str:
    if found := no_cut(case, answer):
        return found
    takes = max(stage_costs(case[0], answer))
    enough = takes <= best * (1 + Fraction(1, 10**9))
    return '' if enough else f'The slowest stage takes {float(takes):g}, and {float(best):g} is possible.'


def best(case: Case) -> Balance:
    """A best cut, of all."""
    return min(all_cuts(len(case[0]), case[1]), key=lambda cut: max(stage_costs(case[0], cut)))


def bars(case: Case, answer: Any) -> str:
    """A line a stage, as long as the stage takes."""
    if no_cut(case, answer):
        return ''
    times = [float(time) for time in stage_costs(case[0], answer)]
    scale = 50 / (max(times) or 1.0)
    return '\n'.join(f'stage {stage:<2} {"#" * round(time * scale)} {time:g}' for stage, time in enumerate(times))


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
