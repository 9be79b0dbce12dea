"""Schedules that learners write, as rows of texts like 'F0': read, put to the test, timed and drawn.

    rows = [['F0', 'F1', 'B1', 'B0'],      # stage 0
            ['F0', 'F1', 'B1', 'B0']]      # stage 1

A forward takes one unit of virtual time and a backward two.
"""

import io
import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import Any

from fewgpu.schedule import Op
from fewgpu.trace import Span, Timeline
from fewgpu.workshop.blocks import blocks
from fewgpu.workshop.practice.plain import listed

COLUMNS = 76
UNITS = {'F': 1.0, 'B': 2.0}
CELL = re.compile(r'([FB])(0|[1-9]\d*)', re.ASCII)

Rows = list[list[str]]
Sizes = tuple[int, int]   # stages, micro-batches


def show(rows: Any, micro_batches: int) -> None:
    """Prints rows, one a stage, in virtual time, and what is wrong with them. For trying out an exercise by hand."""
    rows = plain_rows(rows)
    if rows is None:
        return print('   nothing yet')
    print(picture(rows) or repr(rows))
    if wrong := broken((len(rows) if isinstance(rows, list) else 0, micro_batches), rows):
        print(f'This is no training step. {wrong}')


def plain_rows(answer: Any) -> Any:
    """Rows as lists of lists, whatever containers they came in. What is no container stays as it is."""
    rows = listed(answer)
    return [listed(row) for row in rows] if isinstance(rows, list) else rows


def are_lists(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def are_rows(rows: Any) -> bool:
    """Lists of readable cells?"""
    return are_lists(rows) and all(_is_readable(cell) for row in rows for cell in row)


def _is_readable(cell: Any) -> bool:
    return isinstance(cell, str) and CELL.fullmatch(cell) is not None


def micro_batch(cell: str) -> int:
    """Of a readable cell."""
    return int(cell[1:])


def missing(row: Sequence[str], micro_batches: int) -> list[str]:
    """What a stage should run and does not."""
    return [cell for kind in 'FB' for i in range(micro_batches) if (cell := f'{kind}{i}') not in row]


def broken(sizes: Sizes, rows: Any) -> str:
    """What keeps an answer from being the rows of one training step, in a sentence; '' if nothing does.

    Every stage runs each forward and each backward once, the forward first, and no stage waits for ever.
    """
    return next(_faults(*sizes, rows), '')


def _faults(stages: int, micro_batches: int, rows: Any) -> Iterator[str]:
    """The first is the one to tell: what is looked at later relies on what was looked at before."""
    if not are_lists(rows):
        yield 'The answer is no list of rows, one for each stage.'
    cells = [(stage, cell) for stage, row in enumerate(rows) for cell in row]
    for stage, cell in cells:
        if isinstance(cell, str) and re.fullmatch(r'[FB]-\d+', cell):
            yield f'Stage {stage} runs {cell}, but there is no micro-batch {cell[1:]}: they are counted from 0.'
        if not _is_readable(cell):
            yield (f'The row of stage {stage} holds {cut(repr(cell).partition(chr(10))[0], 20)}: an operation is an F '
                   "or a B and the number of its micro-batch, as in 'F0'.")
    if len(rows) != stages:
        yield f'There are {len(rows)} rows for {_count(stages, "stage")}.'
    for stage, cell in cells:
        if micro_batch(cell) >= micro_batches:
            yield (f'Stage {stage} runs {cell}, but there is no micro-batch {micro_batch(cell)}: '
                   f'{_count(micro_batches, "micro-batch", "es")}, counted from 0.')
    for stage, row in enumerate(rows):
        for cell, count in Counter(row).items():
            if count > 1:
                yield f'Stage {stage} runs {cell} more than once.'
        if lacks := missing(row, micro_batches):
            yield f'Stage {stage} never runs {", ".join(lacks[:4])}{" ..." if len(lacks) > 4 else ""}.'
    for stage, cell in cells:
        if cell[0] == 'B' and rows[stage].index(f'F{cell[1:]}') > rows[stage].index(cell):
            yield f'Stage {stage} runs {cell} before F{cell[1:]}: a backward needs what its own forward has left.'
    if waits := as_far_as_it_comes(rows)[1]:
        yield f'It never ends: {"; ".join(waits)}.'


def _count(number: int, thing: str, plural: str = 's') -> str:
    return f'{number} {thing}{plural if number != 1 else ""}'


def as_far_as_it_comes(rows: Rows) -> tuple[Timeline, list[str]]:
    """The timeline of readable rows without repetitions, and what each stage that cannot go on is waiting for."""
    ended: dict[tuple[int, str], float] = {}
    spans: list[list[Span]] = [[] for _ in rows]
    moved = True
    while moved:
        moved = False
        for stage, (row, done) in enumerate(zip(rows, spans)):
            while len(done) < len(row) and not _lacks(stage, cell := row[len(done)], len(rows), ended):
                free, kept = (done[-1].end, done[-1].live) if done else (0.0, 0)
                start = max(free, ended.get((_source(stage, cell), cell), 0.0))
                ended[stage, cell] = start + UNITS[cell[0]]
                done.append(Span(Op(cell[0], stage, micro_batch(cell)), start, ended[stage, cell],
                                 kept + (1 if cell[0] == 'F' else -1)))
                moved = True
    waits = [f'stage {stage} cannot run {row[len(done)]}: it needs {_lacks(stage, row[len(done)], len(rows), ended)}'
             for stage, (row, done) in enumerate(zip(rows, spans)) if len(done) < len(row)]
    return Timeline(tuple(map(tuple, spans)), tuple(f'stage {stage}' for stage in range(len(rows)))), waits


def _lacks(stage: int, cell: str, stages: int, done: Container[tuple[int, str]]) -> str:
    """What has not happened yet of that which an operation needs; '' if it can run."""
    if cell[0] == 'B' and (stage, f'F{cell[1:]}') not in done:
        return f'its own F{cell[1:]}'
    source = _source(stage, cell)
    return f'{cell} of stage {source}' if 0 <= source < stages and (source, cell) not in done else ''


def _source(stage: int, cell: str) -> int:
    """The stage that an operation gets its input from."""
    return stage - 1 if cell[0] == 'F' else stage + 1


def makespan(rows: Rows) -> float:
    """Units of virtual time of a step."""
    return as_far_as_it_comes(rows)[0].makespan


def picture(rows: Any) -> str:
    """The rows in virtual time, as far as they come, and who waits; just the rows if they are not that far."""
    if not are_lists(rows) or not rows:
        return ''
    drawn, waits = None, []
    if can_be_timed(rows):
        timeline, waits = as_far_as_it_comes(rows)
        drawn = blocks(timeline, COLUMNS, colour=False, line='-') if any(timeline.rows) else None
    lines = drawn.plain.splitlines() if drawn else as_text(rows)
    return '\n'.join(cut(line.rstrip()) for line in [*lines, *waits])


def as_text(rows: Rows) -> list[str]:
    """A line a stage, in order, not in time."""
    width = max((len(str(cell)) for row in rows for cell in row), default=1)
    return [cut(f'stage {stage} | ' + ' '.join(f'{cell!s:<{width}}' for cell in row).rstrip())
            for stage, row in enumerate(rows)]


def cut(line: str, most: int = COLUMNS) -> str:
    return line if len(line) <= most else line[:most - 4] + ' ...'


def svg(rows: Any, title: str = '') -> str:
    """The picture for pages and notebooks; '' if nothing runs."""
    from fewgpu import plot   # matplotlib takes its time, and only failures are drawn
    timeline = as_far_as_it_comes(rows)[0] if can_be_timed(rows) else None
    if timeline is None or not any(timeline.rows):
        return ''
    out = io.StringIO()
    plot.timeline(timeline, title=title, unit='units', counts='stashes').savefig(out, format='svg')
    return out.getvalue()


def can_be_timed(rows: Any) -> bool:
    """Readable cells, none of them twice in a row?"""
    return are_rows(rows) and all(len(set(row)) == len(row) for row in rows)
