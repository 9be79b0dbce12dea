"""Clock cycles that learners write, [[(stage, micro-batch), ...], ...]: read, computed by their rule, and drawn."""

from typing import Any

from fewgpu.workshop.practice.plain import listed
from fewgpu.workshop.practice.rows import COLUMNS, Sizes, are_lists

Cycles = list[list[tuple[int, int]]]


def grid_of(pairs: dict[tuple[int, int], int]) -> list[list[tuple[int, int]]]:
    """Cycles from the cycle in which each (stage, micro-batch) runs."""
    cycles: list[list[tuple[int, int]]] = [[] for _ in range(max(pairs.values(), default=-1) + 1)]
    for pair, cycle in sorted(pairs.items()):
        cycles[cycle].append(pair)
    return cycles


def first_cycles(sizes: Sizes) -> list[list[tuple[int, int]]]:
    """By the rule itself: one cycle after the previous stage, and after the previous micro-batch."""
    at: dict[tuple[int, int], int] = {}
    for s in range(sizes[0]):
        for i in range(sizes[1]):
            at[s, i] = 1 + max(at.get((s - 1, i), -1), at.get((s, i - 1), -1))
    return grid_of(at)


def cycles_of(answer: Any) -> Any:
    """Lists of sorted pairs of whole numbers, whatever containers they came in; what is none stays as it is."""
    cycles = listed(answer)
    if not isinstance(cycles, list):
        return cycles
    cycles = [cycle if isinstance(cycle, tuple) else listed(cycle) for cycle in cycles]
    try:
        return [sorted(tuple(_whole(part) for part in pair) for pair in cycle) for cycle in cycles]
    except (TypeError, ValueError):
        return cycles


def _whole(value: Any) -> int:
    if int(value) != value:
        raise ValueError(value)
    return int(value)


def beyond(sizes: Sizes, got: Any) -> bool:
    """Would they be right without the pairs that do not exist?"""
    def exists(pair: tuple[int, int]) -> bool:
        return 0 <= pair[0] < sizes[0] and 0 <= pair[1] < sizes[1]
    kept = [[pair for pair in cycle if exists(pair)] for cycle in got]
    return kept != got and [cycle for cycle in kept if cycle] == first_cycles(sizes)


def cut_or_padded(sizes: Sizes, got: Any) -> bool:
    """Are they right as far as they go, and then nothing?"""
    right = first_cycles(sizes)
    return len(got) != len(right) and got == (right + [[]] * len(got))[:len(got)]


def tables(sizes: Sizes, got: Any, wanted: Cycles) -> str:
    """Both, a row a stage and a column a cycle."""
    return '\n'.join([*_table('yours', got, sizes), *_table('expected', wanted, sizes)])


def _table(what: str, cycles: Any, sizes: Sizes) -> list[str]:
    if not are_lists(cycles) or not all(isinstance(pair, tuple) and len(pair) == 2
                                        for cycle in cycles for pair in cycle):
        return []
    width = 1 + max([len(str(len(cycles))), *(len(_cell(cycle, stage)) for cycle in cycles for stage, _ in cycle)])
    lines = [f'{what:<11}cycle' + ''.join(f'{cycle:>{width}}' for cycle in range(len(cycles)))]
    for stage in sorted({stage for cycle in cycles for stage, _ in cycle} | set(range(sizes[0]))):
        lines.append(f'{"stage":>14}{stage:>2}' + ''.join(f'{_cell(cycle, stage):>{width}}' for cycle in cycles))
    return [line.rstrip()[:COLUMNS] for line in lines]


def _cell(cycle: list[tuple[int, int]], stage: int) -> str:
    return ','.join(str(i) for s, i in cycle if s == stage)
