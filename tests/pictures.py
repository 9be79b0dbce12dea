"""Can a picture be read? No text over another or beyond the edge, none too small, series apart in grey."""

import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fewgpu.plot.spans import Inside
from fewgpu.workshop.panel import Panel, Slider

SMALLEST = 8      # points
APART = 0.1       # of the lightness between black and white
SLACK = 1.5       # points by which boxes of texts may overlap: letters do not fill them


def faults(figure: Figure) -> list[str]:
    """What makes it hard to read, each a sentence; none if it is fine."""
    FigureCanvasAgg(figure).draw()   # without one of its own a figure draws nothing
    texts = [(text, box) for text in _texts(figure) if (box := _box(text)).width and box.height]
    return [*_too_small(text for text, _ in texts), *_overlaps(texts), *_beyond(texts, figure), *_same_in_grey(figure)]


def _texts(figure: Figure) -> Iterator[Text]:
    """All that are drawn; numbers inside operations are drawn only where they fit, and so are left out."""
    hidden = {label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)
              for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
              for label in (tick.label1, tick.label2) if not (ax.axison and _within(axis, tick.get_loc()))}
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden and not isinstance(text, Inside):
            yield text


def _within(axis, place: float) -> bool:
    lowest, highest = sorted(axis.get_view_interval())
    slack = 1e-9 * (highest - lowest)
    return lowest - slack <= place <= highest + slack


def _box(text: Text) -> Bbox:
    """Of its letters alone: an arrow that comes with it may cross others."""
    return Text.get_window_extent(text)


def _too_small(texts: Iterable[Text]) -> Iterator[str]:
    for text in texts:
        if text.get_fontsize() < SMALLEST:
            yield f'{text.get_text()!r} has {text.get_fontsize():g} points'


def _overlaps(texts: list[tuple[Text, Bbox]]) -> Iterator[str]:
    for (one, first), (other, second) in itertools.combinations(texts, 2):
        slack = SLACK * one.figure.dpi / 72
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        if width > slack and height > slack:
            yield f'{one.get_text()!r} and {other.get_text()!r} lie over each other'


def _beyond(texts: list[tuple[Text, Bbox]], figure: Figure) -> Iterator[str]:
    for text, box in texts:
        if box.x0 < -1 or box.y0 < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1:
            yield f'{text.get_text()!r} is cut off at the edge'


def _same_in_grey(figure: Figure) -> Iterator[str]:
    for ax in figure.axes:
        for one, other in itertools.combinations(_series(ax), 2):
            if _marks(one) == _marks(other) and abs(_lightness(one) - _lightness(other)) < APART:
                yield f'{one.get_label()!r} and {other.get_label()!r} look the same in grey'


def _series(ax: Axes) -> list[Line2D | Patch]:
    """What a key explains, and lines that are drawn as such (thin ones only help the eye)."""
    explained = [handle for legend in ax.findobj(Legend) for handle in legend.legend_handles]
    drawn = [line for line in ax.lines if line.get_linewidth() >= 1 and len(line.get_xdata()) > 2]
    return explained or drawn


def _marks(series: Line2D | Patch) -> tuple:
    """What tells it apart besides its colour."""
    if isinstance(series, Line2D):
        return 'line', str(series.get_linestyle()), str(series._dash_pattern), str(series.get_marker())
    return 'patch', series.get_hatch() or ''


def _lightness(series: Line2D | Patch) -> float:
    """0 is black, 1 is white (CIE L*, a hundredth)."""
    red, green, blue = (channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
                        for channel in to_rgb(series.get_color() if isinstance(series, Line2D)
                                              else series.get_facecolor()))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return 1.16 * luminance ** (1 / 3) - 0.16 if luminance > 0.008856 else 9.033 * luminance


def watch(folder: Path) -> None:
    """From now on, note the faults of every picture that this process saves in a file of the folder.

    Of a panel the pictures of its ends are looked at, too: all sliders at the lowest, all at the highest value.
    """
    save = Figure.savefig

    def saved(figure: Figure, *args, **kwargs) -> None:
        save(figure, *args, **kwargs)
        if found := faults(figure):
            number = len([*folder.iterdir()])
            (folder / f'{number}.txt').write_text('\n'.join(found), encoding='utf-8')

    def displayed(panel: Panel, **asked) -> tuple[dict, dict]:
        for end in ('lowest', 'highest'):
            panel.set(**{name: getattr(control, end) for name, control in panel._controls.items()
                         if isinstance(control, Slider)})
            panel.picture()[0].savefig(io.BytesIO())
        panel.set(**{name: control.value for name, control in panel._controls.items()})
        return display(panel, **asked)

    display = Panel._repr_mimebundle_
    Figure.savefig, Panel._repr_mimebundle_ = saved, displayed


def noted(folder: Path) -> list[str]:
    """What was noted since the last call."""
    notes = sorted(folder.glob('*.txt'))
    found = [note.read_text(encoding='utf-8') for note in notes]
    for note in notes:
        note.unlink()
    return found
