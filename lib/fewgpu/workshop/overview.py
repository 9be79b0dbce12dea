"""A timeline of any length in the width of a terminal: in every column, what took most of its time."""

from collections.abc import Sequence

from rich.text import Text

from fewgpu.plot.looks import LOOKS, time_unit
from fewgpu.trace import WAITS, Span, Timeline
from fewgpu.workshop.blocks import ruler, style

MOST_ROWS = 64
IDLE = '·'


def overview(timeline: Timeline, width: int, *, colour: bool, unicode: bool = True) -> Text:
    """A line a device, then times, then what letters and colours mean.

    An operation begins with its name, as in `B3`, where there is room, else with the letter of its kind. Of several
    in a column the longest one is seen.
    """
    gutter = max(map(len, timeline.names)) + 2
    columns = max(width - gutter - 1, 20)
    scale = columns / (timeline.makespan or 1.0)
    idle = IDLE if unicode else '.'
    seen: dict[str, Span] = {}
    lines = []
    for name, row in list(zip(timeline.names, timeline.rows))[:MOST_ROWS]:
        cells = _cells(row, columns, scale)
        seen |= {span.op.kind: span for span in reversed(cells) if span}
        lines.append(Text(f'{name:<{gutter}}') + _line(cells, colour, idle))
    if more := len(timeline.rows) - MOST_ROWS:
        if more > 0:
            lines.append(Text(f'... and {more} more', style='dim'))
    unit, factor = time_unit(timeline.makespan)
    lines.append(Text(f'{unit:>{gutter - 1}} ' + ruler(timeline.makespan * factor, scale / factor), style='dim'))
    return Text('\n').join([*lines, Text(' ' * gutter) + _key(seen, colour, idle)])


def _cells(row: Sequence[Span], columns: int, scale: float) -> list[Span | None]:
    """What is seen in each column; None: idle, or waiting."""
    longest, cells = [0.5] * columns, [None] * columns   # what takes less than half of a column does not fill it alone
    for span in row:
        if span.op.kind in WAITS or span.end <= span.start:
            continue
        start, end = span.start * scale, span.end * scale
        for column in range(max(int(start), 0), min(int(end) + 1, columns)):
            covered = min(end, column + 1) - max(start, column)
            if covered > longest[column] or cells[column] is None and covered > 0.15:
                longest[column], cells[column] = covered, span
    return cells


def _line(cells: Sequence[Span | None], colour: bool, idle: str) -> Text:
    line, at = Text(), 0
    while at < len(cells):
        span, end = cells[at], at
        while end < len(cells) and cells[end] is span:
            end += 1
        if span is None:
            line.append(idle * (end - at), 'dim')
        else:
            label = str(span.op) if len(str(span.op)) <= end - at - (0 if colour else 1) else span.op.kind
            line.append(f'{label:{" " if colour else "-"}<{end - at}}', style(span) if colour else '')
        at = end
    return line


def _key(seen: dict[str, Span], colour: bool, idle: str) -> Text:
    kinds = [Text(f' {kind} {LOOKS[kind].label} ' if colour else f'{kind} {LOOKS[kind].label}',
                  style(seen[kind]) if colour else '') for kind in LOOKS if kind in seen]
    return Text('  ').join([*kinds, Text(f'{idle} idle, or waiting', 'dim')])
