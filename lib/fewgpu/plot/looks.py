"""How things look in all pictures: colours, hatching, titles, and figures that show themselves."""

import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from fewgpu.trace import WAITS


class Look(NamedTuple):
    """How a kind of thing is drawn."""

    label: str
    face: str
    edge: str
    hatch: str = ''
    ink: str = '#10222f'   # of the number inside


LOOKS = {   # in the order of the key
    'F': Look('forward', '#b4d2ea', '#6d9cc0'),
    'R': Look('recompute', '#ffe9b8', '#d59a1e', '/////'),
    'B': Look('backward', '#1f5583', '#10324f', ink='white'),
    'I': Look('backward: inputs', '#3f8f8b', '#1d5653', ink='white'),
    'W': Look('backward: weights', '#e7c9e0', '#a0508b', '....'),
    'U': Look('update', '#d9d9d9', '#333333', 'xxxx'),
    'send': Look('waits for a message', '#bdbdbd', 'none'),
    'recv': Look('waits for a message', '#bdbdbd', 'none'),
}
OTHER = Look('other', '#b8b8b8', '#707070')
IDLE = Look('idle', '#f1f1f1', 'none')
PARAMETERS = Look('parameters', '#1f5583', '#10324f')
ACTIVATIONS = Look('activations, gradients', '#b4d2ea', '#6d9cc0')
GREY = '#6a6a6a'   # of what is said besides


class Picture(Figure):
    """A figure that shows itself at the end of a notebook's cell, whatever backend is set.

    `said` is what it shows, in words and figures: for those who cannot see it, and for tests of notebooks.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.said: list[str] = []

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return shown(self)


def shown(figure: Figure) -> tuple[dict[str, Any], dict[str, Any]]:
    """A figure as notebooks want it: its forms by MIME type, and the width in which to show them."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=180)   # sharp on screens with small pixels
    width = {'width': round(90 * figure.get_figwidth())}
    said = '\n'.join(getattr(figure, 'said', [])) or repr(figure)
    return {'image/png': buffer.getvalue(), 'text/plain': said}, {'image/png': width}


def new_axes(width: float, height: float) -> Axes:
    """Axes in a figure of their own; inches."""
    return Picture(figsize=(width, height), layout='constrained').add_subplot()


def say(ax: Axes, text: str) -> None:
    """Add a line to what the figure of these axes says it shows."""
    if isinstance(ax.figure, Picture):
        ax.figure.said.append(text)


def add_patch(ax: Axes, look: Look, x: float, y: float, width: float, height: float) -> Rectangle:
    """Add a rectangle whose left edge is at x and whose middle is at y."""
    # The edge is of the face's own hue: a white one would wipe out operations narrower than itself.
    return ax.add_patch(Rectangle((x, y - height / 2), width, height, facecolor=look.face,
                                  edgecolor=look.edge, hatch=look.hatch, linewidth=0.4))


def label_rows(ax: Axes, names: Iterable[str], middles: Sequence[float] | None = None) -> None:
    """Rows with names at their left, the first on top; `middles` says where, if not 1 apart."""
    names = list(names)
    ax.set_yticks(middles or range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis='y', length=0, labelsize=9)
    ax.tick_params(axis='x', colors=GREY, labelsize=8)
    ax.spines[['left', 'right', 'top']].set_visible(False)
    ax.spines['bottom'].set_color(GREY)


def head(ax: Axes, title: str, looks: Iterable[Look] = (), facts: str = '') -> None:
    """The title, at its right the facts, and in a line under it what the colours mean."""
    handles = [Line2D([], [], color=look.face, linewidth=2.5, label=look.label)
               if look in (LOOKS[kind] for kind in WAITS) else
               Patch(facecolor=look.face, edgecolor=look.edge, hatch=look.hatch, linewidth=0.4,
                     label=look.label) for look in looks]
    pad = 20 if handles else 6
    title_of(ax, title, pad)
    if facts:
        if len(title) + len(facts) > 9 * ax.figure.get_figwidth():
            facts += '\n'   # no room beside the title: above it
        ax.set_title(facts, loc='right', fontsize=9, color=GREY, pad=pad)
    if handles:
        ax.legend(handles=handles, loc='lower left', bbox_to_anchor=(0.0, 1.0), frameon=False,
                  ncols=len(handles), fontsize=8, borderaxespad=0.2, borderpad=0.0,
                  handlelength=1.4, columnspacing=1.4, handletextpad=0.5)


def title_of(ax: Axes, title: str, pad: float = 6) -> None:
    """Write the title of a picture, if it has one; `pad` points above the axes."""
    if title:
        say(ax, title)
        ax.set_title(title, loc='left', fontsize=10, fontweight='bold', pad=pad)


def time_axis(ax: Axes, length: float, unit: str = '') -> None:
    """Label a time axis of so many seconds; `unit` is what a second is called, if not a second."""
    unit, factor = (unit, 1.0) if unit else time_unit(length)
    ax.set_xlim(0.0, length)
    ax.xaxis.set_major_formatter(lambda seconds, _: f'{seconds * factor:.6g}')
    ax.set_xlabel(f'time ({unit})', loc='left', color=GREY, fontsize=9)


def row_end(ax: Axes, x: float, row: int, text: str) -> None:
    """Say something about a row, behind its end."""
    ax.annotate(f' {text}', (x, row), color=GREY, va='center', fontsize=8, annotation_clip=False)


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which so long a time is written, and how many of them a second has."""
    return next(((unit, factor) for unit, factor in (('s', 1.0), ('ms', 1e3)) if seconds * factor >= 1),
                ('µs', 1e6))


def size(amount: float, counts: str = 'bytes') -> str:
    """Bytes in the unit that suits them, or another count."""
    if counts != 'bytes':
        return f'{amount:.3g} {counts}'
    return next((f'{amount / factor:.3g} {unit}' for unit, factor in
                 (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)) if amount >= factor), f'{amount:g} B')
