"""Popular cuts of a chain of layers into stages that are not the best."""

from itertools import accumulate
from math import ceil
from typing import Any

from fewgpu.workshop.graders.cuts import ROUNDING, Balance, Costs, all_cuts, least_slowest, not_best, stage_costs


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


def split_slowest(costs: Costs, stages: int) -> Balance:
    """The slowest part is cut into two as evenly as can be, again and again."""
    parts = [list(costs)]
    while len(parts) < stages:
        slowest = max((k for k, part in enumerate(parts) if len(part) > 1), key=lambda k: sum(parts[k]))
        part = parts[slowest]
        end = min(range(1, len(part)), key=lambda end: max(sum(part[:end]), sum(part[end:])))
        parts[slowest:slowest + 1] = [part[:end], part[end:]]
    return [len(part) for part in parts]


def climbed(costs: Costs, stages: int) -> Balance:
    """From equal numbers on, a layer moves to a neighbour as long as that makes the slowest stage faster."""
    balance, better = same_numbers(costs, stages), True
    while better:
        better = False
        for stage in range(stages):
            for to in (stage - 1, stage + 1):
                if 0 <= to < stages and balance[stage] > 1:
                    other = list(balance)
                    other[stage] -= 1
                    other[to] += 1
                    if max(stage_costs(costs, other)) < max(stage_costs(costs, balance)):
                        balance, better = other, True
    return balance


def adds_up(costs: Costs, stages: int, got: Any) -> bool:
    """Is it what minimises the sum of all stages? All cuts do: the first or last tried stays; or rounding decides."""
    ones = [1] * (stages - 1)
    rest = len(costs) - len(ones)
    return got in ([*ones, rest], [rest, *ones]) or any(isinstance(cost, float) for cost in costs)


def never_one_layer(costs: Costs, stages: int, got: Any) -> bool:
    """Is it the best of the cuts in which a stage after the first has one layer only if all before it have?"""
    def is_tried(cut: Balance) -> bool:
        return all(cut[k] > 1 or set(cut[:k]) == {1} for k in range(1, stages))

    least = min(max(stage_costs(costs, cut)) for cut in all_cuts(len(costs), stages) if is_tried(cut))
    return is_tried(got) and max(stage_costs(costs, got)) <= least * (1 + ROUNDING)


def within_whole(costs: Costs, stages: int, got: Any) -> bool:
    """Is it the best cut if costs are made whole, or the limit is?"""
    return max(stage_costs(costs, got)) <= ceil(least_slowest(costs, stages)) or any(
        not not_best(([*map(whole, costs)], stages), got) for whole in (int, round))
