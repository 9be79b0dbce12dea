"""Curves of what lives on every device, for under a timeline."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewgpu.plot.looks import (ACTIVATIONS, GREY, head, label_rows, new_axes, row_end, say, size,
                               time_axis)
from fewgpu.trace import Timeline

TALL = 0.8   # of the highest peak; rows are 1 apart


def memory_curves(timeline: Timeline, ax: Axes | None = None, *, title: str = '',
                  span: float | None = None, unit: str = '', counts: str = 'bytes') -> Figure:
    """Draw, a row a device, the bytes that lived on it at the end of every operation.

    All rows have one scale. A dot marks the peak, which stands at the row's end. `span`, `unit`
    and `counts` are those of `timeline`.

    Raises ValueError if nothing was counted.
    """
    peaks = [timeline.peak(device) for device in range(len(timeline.rows))]
    most = max(filter(None, peaks), default=0)
    if not most:
        raise ValueError('no live bytes were counted: run with a ledger or a memory limit, or '
                         'simulate with costs that say what a stash weighs')
    ax = ax or new_axes(8.0, curves_height(timeline))
    for row, (spans, peak) in enumerate(zip(timeline.rows, peaks)):
        points = [(item.end, item.live) for item in spans if item.live is not None]
        floor = row + TALL / 2
        ax.axhline(floor, color=GREY, linewidth=0.4)
        if peak is None:
            row_end(ax, timeline.makespan, row, 'not counted')
            continue
        # What lives changes within an operation; known is what lived when it ended, from then on.
        times, levels = zip(*points, (timeline.makespan, points[-1][1]))
        curve = [floor - TALL * level / most for level in levels]
        ax.fill_between(times, curve, floor, step='post', facecolor=ACTIVATIONS.face,
                        edgecolor=ACTIVATIONS.edge, linewidth=0.6)
        ax.plot(times[levels.index(peak)], min(curve), 'o', color=GREY, markersize=2.5,
                clip_on=False)
        row_end(ax, timeline.makespan, row, f'peak {size(peak, counts)}')
        say(ax, f'{timeline.names[row]}: peak {size(peak, counts)}')
    label_rows(ax, timeline.names)
    time_axis(ax, span or timeline.makespan, unit)
    head(ax, title or f'Live {counts} of every device')
    return ax.figure


def curves_height(timeline: Timeline) -> float:
    """Inches."""
    return 0.8 + (0.34 if len(timeline.rows) <= 8 else 0.24) * len(timeline.rows)
