"""The picture of a merged trace: its timeline, and the critical path as a line through it."""

from collections.abc import Sequence

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewgpu import plot
from fewgpu.critical_path import Link
from fewgpu.plot.looks import GREY
from fewgpu.trace import Timeline

PATH = '#d1495b'   # no colour of an operation
ABOVE = 0.43       # of a row's middle: the line runs along its upper edge


def picture(timeline: Timeline, path: Sequence[Link], title: str) -> Figure:
    """The timeline with its critical path: along a device's upper edge while it decides, down or up where a message
    does."""
    figure = plot.timeline(timeline, title=title)
    ax = figure.axes[0]
    lines = []
    for link in path:
        if link.kind in ('message', 'meeting'):
            lines.append([(link.start, link.sender - ABOVE), (link.end, link.row - ABOVE)])
        else:
            lines.append([(link.start, link.row - ABOVE), (link.end, link.row - ABOVE)])
    ax.add_collection(LineCollection(lines, colors=PATH, linewidths=1.6, capstyle='round', zorder=3), autolim=False)
    ax.set_ylim(len(timeline.rows) - 0.5, -0.6)
    ax.legend(handles=[Line2D([], [], color=PATH, linewidth=1.6, label='critical path')], loc='lower right',
              bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, borderaxespad=0.2, borderpad=0.0,
              labelcolor=GREY) if not ax.get_legend() else _add_to_key(ax)
    return figure


def _add_to_key(ax) -> None:
    """Say what the line is, beside what colours mean."""
    old = ax.get_legend()
    handles = [*old.legend_handles, Line2D([], [], color=PATH, linewidth=1.6, label='critical path')]
    ax.legend(handles=handles, labels=[*(text.get_text() for text in old.get_texts()), 'critical path'],
              loc='lower left', bbox_to_anchor=(0.0, 1.0), frameon=False, ncols=len(handles), fontsize=8,
              borderaxespad=0.2, borderpad=0.0, handlelength=1.4, columnspacing=1.4, handletextpad=0.5)
