"""Lines: how one figure depends on another, for a few cases."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewgpu.plot.looks import GREY, new_axes, say, title_of

# Colour, line and mark of the first, second, ... line: told apart in grey, too.
STYLES = (('#1f5583', '-', 'o'), ('#c8781e', '--', 's'), ('#3f8f8b', ':', '^'), ('#a0508b', '-.', 'D'),
          ('#6a6a6a', (0, (5, 1, 1, 1, 1, 1)), 'v'))


def lines(series: Mapping[str, tuple[Sequence[float], Sequence[float | None]]], ax: Axes | None = None, *,
          title: str = '', x: str = '', y: str = '', log: str = '', write: str = '') -> Figure:
    """Draw a line a series (its xs, its ys) with its name at its end; a y that is None leaves a gap.

    `x` and `y` name the axes, `log` says which of them are logarithmic ('x', 'y' or 'xy'), and
    `write` formats a y beside its mark, for a single series; default: none is written. What is not
    finite leaves a gap, too.

    Raises ValueError for more than five series, which one could not tell apart, and where several
    are to be written.
    """
    if len(series) > len(STYLES):
        raise ValueError(f'{len(series)} lines in one picture cannot be told apart; draw at most {len(STYLES)}')
    if write and len(series) > 1:
        raise ValueError('figures are written beside the marks of a single line only: leave write out')
    if not set(log) <= {'x', 'y'}:
        raise ValueError(f"log is 'x', 'y' or 'xy', not {log!r}")
    ax = ax or new_axes(6.0, 3.0)
    for name in log:
        getattr(ax, f'set_{name}scale')('log')
        axis = getattr(ax, f'{name}axis')
        axis.set_major_formatter('{x:g}')   # 100, and not a power of ten
        axis.set_minor_formatter('')
    for (name, (xs, ys)), (colour, line, mark) in zip(series.items(), STYLES):
        heights = [nan if value is None or not isfinite(value) else value for value in ys]
        ax.plot(xs, heights, color=colour, linestyle=line, marker=mark, markersize=4, linewidth=1.5, label=name)
        if write:
            for at, value in zip(xs, heights):
                if isfinite(value):
                    ax.annotate(write.format(value), (at, value), (0, 6), textcoords='offset points',
                                ha='center', fontsize=8)
    _ticks_at_the_points({at for xs, _ in series.values() for at in xs}, ax)
    ax.spines[['right', 'top']].set_visible(False)
    ax.spines[['left', 'bottom']].set_color(GREY)
    ax.tick_params(colors=GREY, labelsize=8)
    ax.set_xlabel(x, loc='right', color=GREY, fontsize=9)
    ax.set_ylabel(y, color=GREY, fontsize=9)
    ax.margins(y=0.15)
    if 'y' not in log:
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    if len(series) > 1:
        ax.legend(frameon=False, fontsize=8, handlelength=3.2)
    title_of(ax, title)
    for name, (xs, ys) in series.items():
        say(ax, f'{name}: ' + ', '.join(f'{at:.4g}: {value:.3g}' for at, value in zip(xs, ys) if value is not None))
    return ax.figure


def _ticks_at_the_points(xs: set[float], ax: Axes) -> None:
    """If the xs are few whole numbers that lie apart: those are what one wants to read off."""
    ticks = sorted(xs)
    if not ticks or len(ticks) > 10 or not all(float(at).is_integer() for at in ticks):
        return
    places = [ax.transScale.transform((at, 1.0))[0] for at in ticks]
    room = (places[-1] - places[0]) or 1.0
    if all(right - left > 0.01 * room * len(f'{at:g}') * 3 for left, right, at in zip(places, places[1:], ticks[1:])):
        ax.set_xticks(ticks, [f'{at:g}' for at in ticks])
        ax.set_xticks([], minor=True)
