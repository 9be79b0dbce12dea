"""A timeline of any length in the width of a terminal: in every column, what took most of its time."""

from collections.abc import Sequence

from rich.text import Text

from fewgpu.plot.looks import LOOKS, time_unit
from fewgpu.trace import WAITS, Span, Timeline
from fewgpu.workshop.blocks import ruler, style

MOST_ROWS = 64
IDLE = '·'

Cell = tuple[Span, bool] | None   # an operation, and whether it is named, or only its kind


def overview(timeline: Timeline, width: int, *, colour: bool, unicode: bool = True) -> Text:
    """A line a device, then times, then what letters and colours mean.

    An operation begins with its name, as in `B3`, where there is room, else with the letter of its kind. Where many
    share a column, the letter tells which kind takes most of it.
    """
    gutter = max(map(len, timeline.names)) + 2
    columns = max(width - gutter - 1, 20)
    scale = columns / (timeline.makespan or 1.0)
    idle = IDLE if unicode else '.'
    seen: dict[str, Span] = {}
    lines = []
    for name, row in list(zip(timeline.names, timeline.rows))[:MOST_ROWS]:
        cells = _cells(row, columns, scale)
        seen |= {cell[0].op.kind: cell[0] for cell in reversed(cells) if cell}
        lines.append(Text(f'{name:<{gutter}}') + _line(cells, colour, idle))
    if more := len(timeline.rows) - MOST_ROWS:
        if more > 0:
            lines.append(Text(f'... and {more} more', style='dim'))
    unit, factor = time_unit(timeline.makespan)
    times = ruler(timeline.makespan * factor, scale / factor)
    if len(times) > columns:   # the last number has no room
        times = times[:times.rfind(' ')].rstrip()
    lines.append(Text(f'{unit:>{gutter - 1}} {times}', style='dim'))
    return Text('\n').join([*lines, Text(' ' * gutter) + _key(seen, colour, idle)])


def _cells(row: Sequence[Span], columns: int, scale: float) -> list[Cell]:
    """What is seen in each column; None: idle, or waiting, for most of it.

    A span of which at least half a column is seen there is named; shorter ones only by their kind.
    """
    most: list[tuple[float, Span | None]] = [(0.0, None)] * columns
    kinds: list[dict[str, float]] = [{} for _ in range(columns)]
    first: dict[str, Span] = {}
    for span in row:
        if span.op.kind in WAITS:
            continue
        first.setdefault(span.op.kind, span)
        start, end = span.start * scale, span.end * scale
        for column in range(max(int(start), 0), min(int(end) + 1, columns)):
            covered = min(end, column + 1) - max(start, column)
            if covered > most[column][0]:
                most[column] = covered, span
            kinds[column][span.op.kind] = kinds[column].get(span.op.kind, 0.0) + covered
    cells: list[Cell] = []
    for (covered, span), shares in zip(most, kinds):
        kind = max(shares, key=shares.__getitem__, default='')
        if covered >= 0.5:
            cells.append((span, True))
        else:
            cells.append((first[kind], False) if sum(shares.values()) >= 0.3 else None)
    return cells


def _line(cells: Sequence[Cell], colour: bool, idle: str) -> Text:
    line, at = Text(), 0
    while at < len(cells):
        cell, end = cells[at], at
        while end < len(cells) and cells[end] == cell:
            end += 1
        if cell is None:
            line.append(idle * (end - at), 'dim')
        else:
            (op, *_), named = cell
            label = op.kind * (end - at)
            if named:
                fits = len(str(op)) <= end - at - (0 if colour else 1)
                label = f'{str(op) if fits else op.kind:{" " if colour else "-"}<{end - at}}'
            line.append(label, style(cell[0]) if colour else '')
        at = end
    return line


def _key(seen: dict[str, Span], colour: bool, idle: str) -> Text:
    kinds = [Text(f' {kind} {LOOKS[kind].label} ' if colour else f'{kind} {LOOKS[kind].label}',
                  style(seen[kind]) if colour else '') for kind in LOOKS if kind in seen]
    return Text('  ').join([*kinds, Text(f'{idle} idle, or waiting', 'dim')])
