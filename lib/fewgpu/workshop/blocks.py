"""A timeline as coloured blocks of text, for a terminal."""

from collections.abc import Iterator

from rich.style import Style
from rich.text import Text

from fewgpu.plot.looks import LOOKS, OTHER
from fewgpu.trace import WAITS, Span, Timeline

WIDEST = 4   # characters of the shortest operation: more makes nothing clearer

Cell = tuple[int, int, Span]   # first column, the column behind its last, what it shows


def blocks(timeline: Timeline, width: int, *, colour: bool, line: str = '─') -> Text | None:
    """A line a stage, every operation as wide as it is long; None if `width` columns are too few.

    An operation begins with its name, as in `B3`; if those of a kind have no room for it, with its
    number, where `colour` tells the kind. Without colour `line` fills the rest.
    """
    lanes = list(_lanes(timeline))
    gutter = max(len(name) for name, _ in lanes) + 2
    shortest = min((span.seconds for _, spans in lanes for span in spans if span.op.kind != 'U'),
                   default=1.0)
    for characters in range(WIDEST, 0, -1):
        scale = characters / shortest
        if gutter + round(timeline.makespan * scale) > width:
            continue
        rows = [_cells(spans, scale) for _, spans in lanes]
        cells = [cell for row in rows for cell in row]
        short = {span.op.kind for start, end, span in cells if len(str(span.op)) > end - start}
        if short and not colour or any(len(_label(span, short)) > end - start
                                       for start, end, span in cells):
            return None   # shorter blocks have still less room
        drawn = [Text(f'{name:<{gutter}}') + _draw(row, short, None if colour else line)
                 for (name, _), row in zip(lanes, rows)]
        below = Text(' ' * gutter + ruler(timeline.makespan, scale), style='dim')
        return Text('\n').join([*drawn, below, Text(' ' * gutter) + _key(cells, colour)])
    return None


def _lanes(timeline: Timeline) -> Iterator[tuple[str, list[Span]]]:
    """A name and the visible operations of every stage, those of a device below each other."""
    for name, row in zip(timeline.names, timeline.rows):
        stages = sorted({span.op.stage for span in row})
        for stage in stages:
            before = name if stage == stages[0] else ' ' * len(name)
            yield (before if len(stages) == 1 else f'{before}  stage {stage}',
                   [span for span in row if span.op.stage == stage
                    and span.op.kind not in WAITS and span.seconds > 0])


def _cells(spans: list[Span], scale: float) -> list[Cell]:
    """The columns of every operation; an update shorter than one has none, and is left out."""
    cells = [(round(span.start * scale), round(span.end * scale), span) for span in spans]
    return [(start, end, span) for start, end, span in cells if end > start or span.op.kind != 'U']


def _label(span: Span, short: set[str]) -> str:
    return str(span.op.micro_batch if span.op.kind in short else span.op)


def _draw(cells: list[Cell], short: set[str], line: str | None) -> Text:
    row, column = Text(), 0
    for start, end, span in cells:
        row.append(' ' * (start - column))
        row.append(f'{_label(span, short):{line or " "}<{end - start}}',
                   '' if line else style(span))
        column = end
    return row


def _key(cells: list[Cell], colour: bool) -> Text:
    """What the letters and colours mean."""
    first = {span.op.kind: span for *_, span in reversed(cells)}
    return Text('   ' if not colour else ' ').join(
        Text(f' {kind} {LOOKS[kind].label} ' if colour else f'{kind} {LOOKS[kind].label}',
             style(first[kind]) if colour else '') for kind in LOOKS if kind in first)


def style(span: Span) -> Style:
    """The colours of the pictures; neighbours differ a little, so that their edge is seen."""
    look = LOOKS.get(span.op.kind, OTHER)
    shade = 0.88 if span.op.micro_batch % 2 else 1.0
    red, green, blue = (round(int(look.face[i:i + 2], 16) * shade) for i in (1, 3, 5))
    return Style(color='#ffffff' if look.ink == 'white' else look.ink,
                 bgcolor=f'#{red:02x}{green:02x}{blue:02x}')


def ruler(makespan: float, scale: float) -> str:
    """Times under the blocks, at least nine columns apart, each where it begins."""
    power = 10.0 ** -3
    while True:
        step = next((k * power for k in (1, 2, 5) if k * power * scale >= 9), None)
        if step:
            break
        power *= 10
    text = ''
    for tick in range(int(makespan / step) + 1):
        text = f'{text:<{round(tick * step * scale)}}{tick * step:g}'
    return text
