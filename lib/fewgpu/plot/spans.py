"""Timelines: one row a device, what it did when."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from fewgpu.plot.looks import (GREY, IDLE, LOOKS, OTHER, Look, Picture, add_patch, head, label_rows,
                               new_axes)
from fewgpu.trace import WAITS, Span, Timeline

LANE, THIN = 0.72, 0.07   # heights of an operation and of a wait; rows are 1 apart


def timeline(timeline: Timeline | None, ax: Axes | None = None, *, title: str = '',
             span: float | None = None, key: bool = True) -> Figure:
    """Draw one row a device: what it did when, with the numbers of the micro-batches.

    What is left of a row is idle; its busy share stands at its end. `span` (seconds) is the length
    of the time axis, by default the makespan. `key` says what the colours mean.

    Raises ValueError if nothing has run yet.
    """
    if timeline is None or not any(timeline.rows):
        raise ValueError('there is no timeline yet: run a forward and a backward first')
    ax = ax or new_axes(8.0, 1.1 + 0.42 * len(timeline.rows))
    length = span or timeline.makespan or 1.0
    for row, spans in enumerate(timeline.rows):
        add_patch(ax, IDLE, 0.0, row, timeline.makespan or 1.0, LANE)
        for item in spans:
            _draw(ax, item, row)
        ax.annotate(f' {timeline.busy_share[row]:.0%} busy', (timeline.makespan, row), color=GREY,
                    va='center', fontsize=8, annotation_clip=False)
    label_rows(ax, _row_names(timeline))
    ax.set_xlim(0.0, length)
    unit, factor = _unit(length)
    ax.xaxis.set_major_formatter(lambda seconds, _: f'{seconds * factor:.6g}')
    ax.set_xlabel(f'time ({unit})', loc='left', color=GREY, fontsize=9)
    kinds = {item.op.kind for spans in timeline.rows for item in spans if _is_seen(item, length)}
    looks = [look for kind, look in LOOKS.items() if kind in kinds]
    looks += [OTHER] * bool(kinds - LOOKS.keys()) + [IDLE]
    head(ax, title, dict.fromkeys(looks) if key else ())
    return ax.figure


def timelines(named: Mapping[str, Timeline], axes: Sequence[Axes] | None = None) -> Figure:
    """Draw timelines above each other on one time axis, to compare what was planned with what
    happened, or one schedule with another. Raises ValueError if there is none, or an empty one."""
    if not named:
        raise ValueError('there is no timeline to draw: give at least one, by its title')
    if axes is None:
        heights = [1.1 + 0.42 * len(one.rows) for one in named.values() if one]
        figure = Picture(figsize=(8.0, sum(heights)), layout='constrained')
        axes = figure.subplots(len(named), squeeze=False, height_ratios=heights)[:, 0]
    span = max((one.makespan for one in named.values() if one), default=0.0)
    for position, (ax, (title, one)) in enumerate(zip(axes, named.items(), strict=True)):
        timeline(one, ax, title=title, span=span)
        if position < len(named) - 1:
            ax.set_xlabel('')
    return axes[0].figure


class Inside(Text):
    """A text that is drawn only where it fits inside its patch, at whatever size the figure has."""

    def __init__(self, patch: Rectangle, text: str, look: Look) -> None:
        x, y = patch.get_center()
        super().__init__(x, y, text, ha='center', va='center_baseline', color=look.ink)
        if look.hatch:
            self.set_path_effects([withStroke(linewidth=2.5, foreground=look.face)])
        self.patch = patch
        self.set_in_layout(False)

    def draw(self, renderer: Any) -> None:
        room = self.patch.get_window_extent(renderer)
        for size in (8, 7, 6):
            self.set_fontsize(size)
            box = self.get_window_extent(renderer)
            if box.width < room.width and box.height < 1.2 * room.height:
                return super().draw(renderer)


def _draw(ax: Axes, item: Span, row: int) -> None:
    look = LOOKS.get(item.op.kind, OTHER)
    height = THIN if item.op.kind in WAITS else LANE
    patch = add_patch(ax, look, item.start, row, item.seconds, height)
    patch.set_gid(f'{item.op} of stage {item.op.stage}')   # also the name of its group in an SVG
    if item.op.micro_batch >= 0 and item.op.kind not in WAITS:
        ax.add_artist(Inside(patch, str(item.op.micro_batch), look))


def _is_seen(item: Span, length: float) -> bool:
    return item.op.kind not in WAITS or item.seconds > length / 500


def _row_names(timeline: Timeline) -> list[str]:
    """The devices; where stages share one, which stages a row holds."""
    if len(set(timeline.names)) == len(timeline.names):
        return list(timeline.names)
    stages = [sorted({item.op.stage for item in spans}) for spans in timeline.rows]
    return [f"stage {', '.join(map(str, held))} on {name}" if held else name
            for held, name in zip(stages, timeline.names)]


def _unit(seconds: float) -> tuple[str, float]:
    return next(((unit, factor) for unit, factor in (('s', 1.0), ('ms', 1e3)) if seconds * factor >= 1),
                ('µs', 1e6))
