"""What ranks hold and send to each other, and communication beside computing.

A grid has a row a rank and a column a piece. `a0` is what rank 0 had in piece a at first, `a13` the
sum of what ranks 1 and 3 had, and the darker a cell is, the more of them; `Σa` is the sum over all
ranks. What has changed since the grid before has a thick frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from fewgpu.plot.looks import GREY, IDLE, LOOKS, Look, Picture, add_patch, head, label_rows, time_axis
from fewgpu.plot.spans import Inside

if TYPE_CHECKING:   # pictures need no torch
    from fewgpu.workshop.practice.ranks import Run
    from fewgpu.workshop.recorded import Arrow, Cell, Recording

ALL_REDUCE = Look('all-reduce', '#f2e3c6', '#8a6d3b', '\\\\\\\\')
SUMS = LinearSegmentedColormap.from_list('sums', ['#e3eef7', '#9dc2de', '#1f5583'])
TALL, GAP, LEFT = 0.3, 0.62, 0.62   # inches: a cell, the room for arrows, the names of ranks
WIDEST = 10.0


def exchanges(recording: Recording, rounds: Sequence[int] | None = None, *, title: str = '') -> Figure:
    """Draw what a collective did, round by round: the grid before, and after every round, with an
    arrow a message in between. A message that is not seen in its sender's row before, or not kept
    in its receiver's, is written at its arrow.

    `rounds` says which rounds, in a row (the first is 1; default: all). Raises ValueError for rounds
    that are not there.
    """
    rounds = list(rounds or range(1, recording.rounds + 1))
    if not {*rounds} <= {*range(1, recording.rounds + 1)}:
        raise ValueError(f'{recording.name} has the rounds 1 to {recording.rounds}, not {rounds}')
    cell = _width(recording)
    step = cell * len(recording.grids[0][0]) + GAP
    fit = max(1, int((WIDEST - LEFT - step + GAP) / step))      # rounds a line
    fit = -(-len(rounds) // -(-len(rounds) // fit))             # lines of equal lengths
    lines = [rounds[start:start + fit] for start in range(0, len(rounds), fit)]
    tall = TALL * len(recording.grids[0]) + 0.42
    ax = _sheet(LEFT + step * (fit + 1) - GAP + 0.1, 0.34 + tall * len(lines), title or recording.name)
    for line, chosen in enumerate(lines):
        top = 0.34 + tall * line + 0.26
        _ranks(ax, recording, LEFT, top)
        first = chosen[0] - 1
        after = 'after round' if step > 1.2 else 'round'
        _grid(ax, recording, first, LEFT, top, cell, f'{after} {first}' if first else 'before', mark=False)
        for place, number in enumerate(chosen):
            x = LEFT + step * (place + 1)
            _grid(ax, recording, number, x, top, cell, f'{after} {number}')
            now = [arrow for arrow in recording.arrows if arrow.round == number]
            _arrows(ax, recording, now, x - GAP, top)
    return ax.figure


def before_and_after(recordings: Iterable[Recording], *, columns: int = 3) -> Figure:
    """Draw of each collective what the ranks hold before and after it, and who has sent to whom."""
    recordings = list(recordings)
    cell, ranks = 0.34, max(len(one.grids[0]) for one in recordings)
    wide = 2 * cell * max(len(one.grids[0][0]) for one in recordings) + GAP + 0.3
    tall = TALL * ranks + 0.75
    lines = -(-len(recordings) // columns)
    ax = _sheet(LEFT + wide * columns, tall * lines, '')
    for place, one in enumerate(recordings):
        line, column = divmod(place, columns)
        x, top = LEFT + wide * column, tall * line + 0.6
        span = cell * len(one.grids[0][0])
        if column == 0:
            _ranks(ax, one, x, top)
        ax.text(x, top - 0.32, one.name, fontsize=10, fontweight='bold', va='center')
        _grid(ax, one, 0, x, top, cell, 'before', mark=False)
        _grid(ax, one, one.rounds, x + span + GAP, top, cell, 'after', before=0)
        pairs = {(arrow.source, arrow.target): arrow for arrow in one.arrows}
        _arrows(ax, one, pairs.values(), x + span, top, write=False)
    return ax.figure


def _sheet(width: float, height: float, title: str) -> Axes:
    """Axes whose coordinates are inches, from the top left corner; wide enough for the title."""
    width = max(width, 0.2 + 0.087 * len(title))
    ax = Picture(figsize=(width, height)).add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    ax.text(0.06, 0.17, title, fontsize=10, fontweight='bold', va='center')
    return ax


def _width(recording: Recording) -> float:
    """Inches of a cell, so that the longest sum fits."""
    longest = max(len(written(cell, len(grid))) for grid in recording.grids for row in grid for cell in row)
    return max(0.36, 0.12 + 0.08 * longest)


def _ranks(ax: Axes, recording: Recording, x: float, top: float) -> None:
    for rank in range(len(recording.grids[0])):
        ax.text(x - 0.08, top + TALL * (rank + 0.5), f'rank {rank}', fontsize=8, ha='right', va='center',
                color=GREY)


def _grid(ax: Axes, recording: Recording, number: int, x: float, top: float, cell: float, name: str, *,
          mark: bool = True, before: int | None = None) -> None:
    grid = recording.grids[number]
    earlier = recording.grids[number - 1 if before is None else before] if mark else grid
    new = []
    ax.text(x, top - 0.09, name, fontsize=8, color=GREY, va='center')
    for rank, row in enumerate(grid):
        for piece, content in enumerate(row):
            share = (len(content) - 1) / max(len(grid) - 1, 1)
            corner = x + cell * piece, top + TALL * rank
            box = Rectangle(corner, cell, TALL, facecolor=SUMS(share) if content else 'white',
                            edgecolor='#b5b5b5', linewidth=0.6)
            box.set_gid(f'rank {rank}, piece {piece}, {name}')
            ax.add_patch(box)
            ax.text(corner[0] + cell / 2, corner[1] + TALL / 2, written(content, len(grid)), fontsize=8.5,
                    ha='center', va='center_baseline', color='white' if share > 0.7 else '#10222f')
            if content != earlier[rank][piece]:
                new.append(corner)
    for left, up in new:   # on top of their neighbours' edges
        ax.add_patch(Rectangle((left, up), cell, TALL, fill=False, edgecolor='black', linewidth=2, zorder=3))


def _arrows(ax: Axes, recording: Recording, arrows: Collection[Arrow], x: float, top: float, *,
            write: bool = True) -> None:
    """Of messages, in the room that begins at x."""
    for arrow in arrows:
        start, end = (top + TALL * (rank + 0.5) for rank in (arrow.source, arrow.target))
        ax.add_patch(FancyArrowPatch((x + 0.05, start), (x + GAP - 0.05, end), arrowstyle='-|>',
                                     mutation_scale=9, shrinkA=0, shrinkB=0, linewidth=1.1, color='#444444'))
        if write and not _is_seen(recording, arrow):
            text = ' '.join(written(cell, len(recording.grids[0])) for cell in arrow.cells)
            ax.text(x + 0.04, start - 0.36 * TALL, text, fontsize=8, va='center', zorder=4,
                    path_effects=[withStroke(linewidth=2.5, foreground='white')])


def _is_seen(recording: Recording, arrow: Arrow) -> bool:
    """Is what was sent seen in the sender's row before, and as a part of what is new in the receiver's after?"""
    held = recording.grids[arrow.round - 1][arrow.source]
    before, after = (recording.grids[number][arrow.target] for number in (arrow.round - 1, arrow.round))
    new = [cell for old, cell in zip(before, after) if old != cell]
    return all(_is_in(sent, held) and any({*sent} <= {*cell} for cell in new) for sent in arrow.cells)


def _is_in(sent: Cell, row: Sequence[Cell]) -> bool:
    return any({*sent} == {*cell} for cell in row)


def written(cell: Cell, ranks: int) -> str:
    """What stands in a cell: `a0`, `a13`, `Σa`, or nothing."""
    if not cell:
        return ''
    letter = 'abcdefghijklmnopqrstuvwxyz'[cell[0][0]]
    return f'Σ{letter}' if len(cell) == ranks else letter + ''.join(str(rank) for _, rank in sorted(cell))


def overlaps(runs: Mapping[str, Run], *, unit: str = 'units') -> Figure:
    """Draw, of practice runs of a data-parallel step, what rank 0 computes and when all-reduces go on.

    The first stretch of computing is the forward, the others are backwards of layers, the last layer
    first; layers are numbered from the input, from 0, reductions as they begin. One picture a run, on
    one time axis.
    """
    figure = Picture(figsize=(8.0, 1.65 * len(runs) + 0.2), layout='constrained')
    longest = max(run.makespan for run in runs.values())
    axes = figure.subplots(len(runs), squeeze=False)[:, 0]
    for ax, (name, run) in zip(axes, runs.items()):
        (forward, *backwards), channel = run.worked[0], run.reductions
        for row in (0, 1):
            add_patch(ax, IDLE, 0.0, row, run.makespan, 0.72)
        _stretch(ax, LOOKS['F'], 0, [forward], [''])
        _stretch(ax, LOOKS['B'], 0, backwards, [str(number) for number in reversed(range(len(backwards)))])
        _stretch(ax, ALL_REDUCE, 1, [(reduction.begins, reduction.ends) for reduction in channel],
                 [str(number) for number in range(len(channel))])
        label_rows(ax, ['computes', 'network'])
        time_axis(ax, longest, unit)
        if ax is not axes[-1]:
            ax.set_xlabel('')
        head(ax, name, [LOOKS['F'], LOOKS['B'], ALL_REDUCE, IDLE], f'{run.makespan:.4g} {unit}')
    return figure


def _stretch(ax: Axes, look: Look, row: int, spans: Sequence[tuple[float, float]], texts: list[str]) -> None:
    """Stretches of one kind; either all of their texts are shown, or none."""
    for (begin, end), text in zip(spans, texts):
        patch = add_patch(ax, look, begin, row, end - begin, 0.72)
        patch.set_gid(f'{look.label} {text}')
        if text:
            ax.add_artist(Inside(patch, text, look, digits=max(map(len, texts))))
