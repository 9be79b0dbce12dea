"""Timelines: one row a device, what it did when."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from fewgpu.plot.curves import curves_height, memory_curves
from fewgpu.plot.looks import (IDLE, LOOKS, OTHER, Look, Picture, add_patch, head, label_rows,
                               new_axes, row_end, say, time_axis, time_unit)
from fewgpu.trace import WAITS, Span, Timeline

LANE, THIN = 0.72, 0.07   # heights of an operation and of a wait; rows are 1 apart
SMALLEST = 8              # points: what is smaller cannot be read from the back of a room
SHARED = 0.5              # height of an operation where a row holds several stages


def timeline(timeline: Timeline | None, ax: Axes | None = None, *, title: str = '',
             span: float | None = None, key: bool = True, unit: str = '',
             counts: str = 'bytes') -> Figure:
    """Draw one row a device: what it did when, with the numbers of the micro-batches.

    What is left of a row is idle; its busy share stands at its end. Where a device holds several
    stages, the later ones lie lower in its row. In a figure of its own, curves of what lived on
    each device stand below, if that was counted (see `memory_curves`).

    `span` (seconds) is the length of the time axis, by default the makespan. `key` says what the
    colours mean. `unit` is what a second is called where time is virtual, and `counts` what was
    counted if not bytes.

    Raises ValueError if nothing has run yet.
    """
    _verify(timeline)
    below = None
    if ax is None:
        ax, below = _own_axes(timeline)
    length = span or timeline.makespan or 1.0
    digits = len(str(max(item.op.micro_batch for spans in timeline.rows for item in spans)))
    for row, spans in enumerate(timeline.rows):
        add_patch(ax, IDLE, 0.0, row, timeline.makespan or 1.0, LANE)
        stages = sorted({item.op.stage for item in spans})
        for item in spans:
            _draw(ax, item, row, stages, digits)
        row_end(ax, timeline.makespan, row, f'{timeline.busy_share[row]:.0%} busy')
    label_rows(ax, _row_names(timeline))
    time_axis(ax, length, unit)
    kinds = {item.op.kind for spans in timeline.rows for item in spans if _is_seen(item, length)}
    looks = [look for kind, look in LOOKS.items() if kind in kinds]
    looks += [OTHER] * bool(kinds - LOOKS.keys()) + [IDLE]
    head(ax, title, dict.fromkeys(looks) if key else (), _facts(timeline, unit))
    say(ax, f"{_facts(timeline, unit)}; busy {', '.join(f'{share:.0%}' for share in timeline.busy_share)}")
    if below is not None:
        ax.set_xlabel('')
        memory_curves(timeline, below, span=span, unit=unit, counts=counts)
    return ax.figure


def timelines(named: Mapping[str, Timeline], axes: Sequence[Axes] | None = None, *,
              unit: str = '') -> Figure:
    """Draw timelines above each other on one time axis, to compare what was planned with what
    happened, or one schedule with another. Raises ValueError if there is none, or an empty one."""
    if not named:
        raise ValueError('there is no timeline to draw: give at least one, by its title')
    for one in named.values():
        _verify(one)
    if axes is None:
        heights = [_height(one) for one in named.values()]
        width = max(map(_width, named.values()))
        figure = Picture(figsize=(width, sum(heights)), layout='constrained')
        axes = figure.subplots(len(named), squeeze=False, height_ratios=heights)[:, 0]
    span = max(one.makespan for one in named.values())
    for position, (ax, (title, one)) in enumerate(zip(axes, named.items(), strict=True)):
        timeline(one, ax, title=title, span=span, unit=unit)
        if position < len(named) - 1:
            ax.set_xlabel('')
    return axes[0].figure


def _verify(timeline: Timeline | None) -> None:
    if timeline is None or not any(timeline.rows):
        raise ValueError('there is no timeline yet: run a forward and a backward first')


def _own_axes(timeline: Timeline) -> tuple[Axes, Axes | None]:
    """Of a new figure: for the timeline and, if live bytes were counted, for their curves."""
    width, height = _width(timeline), _height(timeline)
    if not any(map(timeline.peak, range(len(timeline.rows)))):
        return new_axes(width, height), None
    heights = height, curves_height(timeline)
    figure = Picture(figsize=(width, sum(heights)), layout='constrained')
    return tuple(figure.subplots(2, height_ratios=heights))


def _width(timeline: Timeline) -> float:
    """Inches; many operations need more, or their numbers would not fit."""
    longest = max(sum(item.op.kind not in WAITS for item in row) for row in timeline.rows)
    return min(max(8.0, 0.125 * longest), 16.0)


def _height(timeline: Timeline) -> float:
    """Inches; many rows are drawn closer together."""
    return 1.1 + (0.42 if len(timeline.rows) <= 8 else 0.32) * len(timeline.rows)


class Inside(Text):
    """A number that is drawn only where it fits inside its patch, at whatever size the figure has.

    `digits` is how many the longest of its like has: where that does not fit, none of them is shown.
    """

    def __init__(self, patch: Rectangle, text: str, look: Look, digits: int = 1) -> None:
        x, y = patch.get_center()
        super().__init__(x, y, text, ha='center', va='center_baseline', color=look.ink, fontsize=SMALLEST)
        if look.hatch:
            self.set_path_effects([withStroke(linewidth=2.5, foreground=look.face)])
        self.patch, self.digits = patch, max(digits, len(text))
        self.set_in_layout(False)

    def draw(self, renderer: Any) -> None:
        room = self.patch.get_window_extent(renderer)
        if room.width < renderer.points_to_pixels(0.4 * SMALLEST * self.digits):
            return   # a digit is wider than that: no need to measure it
        box = self.get_window_extent(renderer)
        if box.width * self.digits / len(self.get_text()) < room.width and box.height < 1.2 * room.height:
            super().draw(renderer)


def _draw(ax: Axes, item: Span, row: int, stages: Sequence[int], digits: int) -> None:
    look = LOOKS.get(item.op.kind, OTHER)
    height, middle = LANE, float(row)
    if item.op.kind in WAITS:
        height = THIN
    elif len(stages) > 1:
        height = SHARED
        middle += (LANE - SHARED) * (stages.index(item.op.stage) / (len(stages) - 1) - 0.5)
    patch = add_patch(ax, look, item.start, middle, item.seconds, height)
    patch.set_gid(f'{item.op} of stage {item.op.stage}')   # also the name of its group in an SVG
    if item.op.micro_batch >= 0 and item.op.kind not in WAITS:
        ax.add_artist(Inside(patch, str(item.op.micro_batch), look, digits))


def _is_seen(item: Span, length: float) -> bool:
    return item.op.kind not in WAITS or item.seconds > length / 500


def _facts(timeline: Timeline, unit: str) -> str:
    unit, factor = (unit, 1.0) if unit else time_unit(timeline.makespan)
    return f'makespan {timeline.makespan * factor:.4g} {unit}, bubble {timeline.bubble:.1%}'


def _row_names(timeline: Timeline) -> list[str]:
    """The devices; where stages share one, which stages a row holds."""
    held = [sorted({item.op.stage for item in spans}) for spans in timeline.rows]
    if len(set(timeline.names)) == len(timeline.names):
        return [f"{name}\nstages {', '.join(map(str, stages))}" if len(stages) > 1 else name
                for stages, name in zip(held, timeline.names)]
    return [f"stage {', '.join(map(str, stages))} on {name}" if stages else name
            for stages, name in zip(held, timeline.names)]
