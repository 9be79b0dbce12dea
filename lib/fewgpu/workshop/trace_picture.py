"""The picture of a merged trace: its timeline, and the critical path as a line through it."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewgpu import plot
from fewgpu.critical_path import Link
from fewgpu.plot.looks import GREY, say
from fewgpu.trace import Timeline

PATH = '#d1495b'   # no colour of an operation
ABOVE = 0.43       # of a row's middle: the line runs along its upper edge


def picture(timeline: Timeline, path: Sequence[Link], title: str, facts: str) -> Figure:
    """The timeline with its critical path: along a device's upper edge while it decides, down or up where a message
    does. `facts` stand at the right of the title."""
    figure = plot.timeline(timeline, title=title)
    ax = figure.axes[0]
    lines = [[(link.start, (link.sender if link.kind in ('message', 'meeting') else link.row) - ABOVE),
              (link.end, link.row - ABOVE)] for link in path]
    ax.add_collection(LineCollection(lines, colors=PATH, linewidths=1.6, capstyle='round', zorder=3), autolim=False)
    ax.set_ylim(len(timeline.rows) - 0.5, -0.6)
    _add_to_key(ax)
    ax.set_title(facts, loc='right', fontsize=9, color=GREY, pad=20)
    say(ax, f'{facts}; the critical path goes through {len(path)} operations and messages')
    return figure


def _add_to_key(ax: Axes) -> None:
    """Say what the line is, beside what the colours mean."""
    old = ax.get_legend()
    handles = [*old.legend_handles, Line2D([], [], color=PATH, linewidth=1.6)]
    ax.legend(handles=handles, labels=[*(text.get_text() for text in old.get_texts()), 'critical path'],
              loc='lower left', bbox_to_anchor=(0.0, 1.0), frameon=False, ncols=len(handles), fontsize=8,
              borderaxespad=0.2, borderpad=0.0, handlelength=1.4, columnspacing=1.4, handletextpad=0.5)
