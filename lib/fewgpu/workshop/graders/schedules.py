"""Schedules that learners write, as rows of texts like 'F0': read, put to the test, timed and drawn.

    rows = [['F0', 'F1', 'B1', 'B0'],      # stage 0
            ['F0', 'F1', 'B1', 'B0']]      # stage 1

A forward takes one unit of virtual time and a backward two.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fewgpu.schedule import Op, Schedule, ScheduleError
from fewgpu.schedule.waits import verify_no_deadlock
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import Span, Timeline
from fewgpu.workshop.blocks import blocks
from fewgpu.workshop.grading.law import equal, shown

COLUMNS = 76
COSTS = Costs(F=1.0, B=2.0)
CELL = re.compile(r'([FB])(0|[1-9]\d*)', re.ASCII)

Rows = list[list[str]]
Sizes = tuple[int, int]   # stages, micro-batches


@dataclass(frozen=True)
class Law:
    """What stands for the truth where there are many right answers: `broken` says what is wrong, '' if nothing is."""

    broken: Callable[[Any], str]


@dataclass(frozen=True)
class Like:
    """What a suspect answers where a misconception has many looks: `fits` tells whether this is one of them."""

    fits: Callable[[Any], bool]


def alike(one: Any, other: Any) -> bool:
    """The `same` of judges whose truth is a `Law` or whose suspects answer `Like`."""
    if isinstance(other, Law):
        return not other.broken(one)
    if isinstance(other, Like):
        try:
            return bool(other.fits(one))
        except (TypeError, ValueError, AttributeError, LookupError):   # it is of quite another type
            return False
    return equal(one, other)


def plain_rows(answer: Any) -> Any:
    """Rows as lists of lists, whatever containers they came in. What is no container stays as it is."""
    rows = _listed(answer)
    return [_listed(row) for row in rows] if isinstance(rows, list) else rows


def _listed(answer: Any) -> Any:
    return list(answer) if isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, dict)) else answer


def are_rows(rows: Any) -> bool:
    """Lists of readable cells?"""
    return isinstance(rows, list) and all(
        isinstance(row, list) and all(isinstance(cell, str) and CELL.fullmatch(cell) for cell in row) for row in rows)


def number(cell: str) -> int:
    """The micro-batch of a readable cell."""
    return int(cell[1:])


def schedule_of(rows: Rows, micro_batches: int) -> Schedule:
    """Readable rows as a schedule."""
    return Schedule('yours', len(rows), micro_batches, tuple(
        tuple(Op(cell[0], stage, number(cell)) for cell in row) for stage, row in enumerate(rows)))


def broken(sizes: Sizes, rows: Any) -> str:
    """What keeps an answer from being the rows of one training step, in a sentence; '' if nothing does.

    Every stage runs each forward and each backward once, the forward first, and no stage waits for ever.
    """
    stages, micro_batches = sizes
    return (_misshapen(stages, micro_batches, rows) or _miscounted(micro_batches, rows) or _misordered(rows)
            or _deadlocked(micro_batches, rows))


def _misshapen(stages: int, micro_batches: int, rows: Any) -> str:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return 'It is no list that holds a list for every stage.'
    for stage, row in enumerate(rows):
        for cell in row:
            if isinstance(cell, str) and re.fullmatch(r'[FB]-\d+', cell):
                return f'Stage {stage} runs {cell}, but there is no micro-batch {cell[1:]}: they are counted from 0.'
            if not (isinstance(cell, str) and CELL.fullmatch(cell)):
                return (f'The row of stage {stage} holds {shown(repr(cell), 20)}: an operation is an F or a B and '
                        f"the number of its micro-batch, as in 'F0'.")
    if len(rows) != stages:
        return f'There are {len(rows)} rows for {_count(stages, "stage")}.'
    for stage, row in enumerate(rows):
        for cell in row:
            if number(cell) >= micro_batches:
                return (f'Stage {stage} runs {cell}, but there is no micro-batch {number(cell)}: '
                        f'{_count(micro_batches, "micro-batch", "es")}, counted from 0.')
    return ''


def _count(number: int, thing: str, plural: str = 's') -> str:
    return f'{number} {thing}{plural if number != 1 else ""}'


def missing(row: Sequence[str], micro_batches: int) -> list[str]:
    """What a stage should run and does not."""
    there = set(row)
    return [cell for kind in 'FB' for i in range(micro_batches) if (cell := f'{kind}{i}') not in there]


def _miscounted(micro_batches: int, rows: Rows) -> str:
    for stage, row in enumerate(rows):
        twice = [cell for cell, count in Counter(row).items() if count > 1]
        if twice:
            return f'Stage {stage} runs {twice[0]} more than once.'
        if lacks := missing(row, micro_batches):
            return f'Stage {stage} never runs {", ".join(lacks[:4])}{" ..." if len(lacks) > 4 else ""}.'
    return ''


def _misordered(rows: Rows) -> str:
    for stage, row in enumerate(rows):
        for cell in row:
            if cell[0] == 'B' and row.index(f'F{cell[1:]}') > row.index(cell):
                return f'Stage {stage} runs {cell} before F{cell[1:]}: a backward needs what its own forward has left.'
    return ''


def _deadlocked(micro_batches: int, rows: Rows) -> str:
    try:
        verify_no_deadlock(schedule_of(rows, micro_batches))
    except ScheduleError as error:
        return f'It never ends: {str(error).partition(" sends: ")[2].splitlines()[0]}.'
    return ''


def makespan(rows: Rows, micro_batches: int) -> float:
    """Units of virtual time of a step. Raises ScheduleError if it never ends."""
    return simulate(schedule_of(rows, micro_batches), COSTS).makespan


def least_makespan(sizes: Sizes) -> float:
    """Of any step whose every stage is busy for all micro-batches, one way and back: (m + n - 1) (F + B)."""
    return (sum(sizes) - 1) * (COSTS.F + COSTS.B)


def as_far_as_it_comes(rows: Rows) -> tuple[Timeline, list[str]]:
    """The timeline of readable rows without repetitions, and what each stage that cannot go on is waiting for."""
    ended: dict[tuple[int, str], float] = {}
    spans: list[list[Span]] = [[] for _ in rows]
    moved = True
    while moved:
        moved = False
        for stage, row in enumerate(rows):
            while len(spans[stage]) < len(row) and not _lacks(stage, cell := row[len(spans[stage])], len(rows), ended):
                source = stage - 1 if cell[0] == 'F' else stage + 1
                start = max(ended.get((source, cell), 0.0), spans[stage][-1].end if spans[stage] else 0.0)
                ended[stage, cell] = start + COSTS.of(cell[0], stage)
                kept = (spans[stage][-1].live if spans[stage] else 0) + (1 if cell[0] == 'F' else -1)
                spans[stage].append(Span(Op(cell[0], stage, number(cell)), start, ended[stage, cell], kept))
                moved = True
    waits = [f'stage {stage} cannot run {row[len(done)]}: it needs {_lacks(stage, row[len(done)], len(rows), ended)}'
             for stage, (row, done) in enumerate(zip(rows, spans)) if len(done) < len(row)]
    return Timeline(tuple(map(tuple, spans)), tuple(f'stage {stage}' for stage in range(len(rows)))), waits


def _lacks(stage: int, cell: str, stages: int, done: Container[tuple[int, str]]) -> str:
    """What has not happened yet of that which an operation needs; '' if it can run."""
    kind, there = cell[0], stage - 1 if cell[0] == 'F' else stage + 1
    if kind == 'B' and (stage, f'F{cell[1:]}') not in done:
        return f'its own F{cell[1:]}'
    return f'{cell} of stage {there}' if 0 <= there < stages and (there, cell) not in done else ''


def picture(rows: Any) -> str:
    """The rows in virtual time, as far as they come, and who waits; just the rows if they are not that far."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        return ''
    drawn, waits = None, []
    if _can_be_timed(rows):
        timeline, waits = as_far_as_it_comes(rows)
        drawn = blocks(timeline, COLUMNS, colour=False, line='-') if any(timeline.rows) else None
    lines = drawn.plain.splitlines() if drawn else as_text(rows)
    return '\n'.join(cut(line.rstrip()) for line in [*lines, *waits])


def as_text(rows: Rows) -> list[str]:
    """A line a stage, in order, not in time."""
    width = max((len(str(cell)) for row in rows for cell in row), default=1)
    return [cut(f'stage {stage} | ' + ' '.join(f'{cell!s:<{width}}' for cell in row).rstrip())
            for stage, row in enumerate(rows)]


def cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[:COLUMNS - 4] + ' ...'


def svg(rows: Any, title: str = '') -> str:
    """The picture for pages and notebooks; '' if nothing runs."""
    from fewgpu import plot   # matplotlib takes its time, and only failures are drawn
    timeline = as_far_as_it_comes(rows)[0] if _can_be_timed(rows) else None
    if timeline is None or not any(timeline.rows):
        return ''
    out = io.StringIO()
    plot.timeline(timeline, title=title, unit='units', counts='stashes').savefig(out, format='svg')
    return out.getvalue()


def _can_be_timed(rows: Any) -> bool:
    return are_rows(rows) and all(len(set(row)) == len(row) for row in rows)
