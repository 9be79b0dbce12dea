"""Sliders over a picture: `Panel(draw, stages=Slider(4, 1, 8))` in a notebook's cell.

Where widgets are not rendered (a page on the web, a printed lesson) the same object is a picture of
its first values.
"""

import time
from collections.abc import Callable
from html import escape
from numbers import Real
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from fewgpu.plot.looks import shown

WIDGET = 'application/vnd.jupyter.widget-view+json'
AT_ONCE = 0.25   # seconds: a picture that takes longer is redrawn when a slider is let go, not at every value it passes


class Slider(NamedTuple):
    """A number to choose: where it stands at first, its ends, its step, and what it is called."""

    value: float
    lowest: float
    highest: float
    step: float = 1
    label: str = ''   # default: the name of the argument

    def verify(self, name: str, value: Any) -> None:
        """Raises ValueError if the slider cannot stand there."""
        if not (self.lowest < self.highest and self.step > 0):
            raise ValueError(f'the slider {name} goes from {self.lowest} to {self.highest} by {self.step}: its ends '
                             'must differ, the lower one first, and its step be above 0')
        if not isinstance(value, Real) or not self.lowest <= value <= self.highest:
            raise ValueError(f'the slider {name} goes from {self.lowest} to {self.highest}, and cannot be {value!r}')


class Choice(NamedTuple):
    """One of several values to choose."""

    value: Any
    of: tuple
    label: str = ''

    def verify(self, name: str, value: Any) -> None:
        """Raises ValueError if that is none of the choices."""
        if value not in self.of:
            raise ValueError(f"{name} is one of {', '.join(map(repr, self.of))}, and cannot be {value!r}")


class Panel:
    """A picture with a slider for each argument of the function that draws it.

    `draw(**values)` returns a figure, or a figure and a line of text to stand above it. It is called
    whenever a slider moves; what it raises is shown in place of the picture. `set(stages=2)` moves a
    slider from code, and `values` says where all of them stand.

    Raises ValueError for a slider that cannot stand where it is said to.
    """

    def __init__(self, draw: Callable[..., Figure | tuple[Figure, str]], **controls: Slider | Choice) -> None:
        self._draw, self._controls = draw, controls
        self._built: dict[str, Any] = {}    # widgets, once somebody looks at them
        self._box: Any = None
        self.values = {name: control.value for name, control in controls.items()}
        for name, control in controls.items():
            control.verify(name, control.value)

    def set(self, **values: Any) -> None:
        """Move sliders. Raises KeyError for one that is not there, ValueError for a value that it cannot have."""
        for name, value in values.items():
            if name not in self._controls:
                raise KeyError(f"there is no slider {name!r}; there are {', '.join(self._controls)}")
            self._controls[name].verify(name, value)
        for name, value in values.items():
            self.values[name] = value
            if name in self._built:
                self._built[name].value = value

    def picture(self) -> tuple[Figure, str]:
        """What is to be seen now: the figure, and the line above it (may be empty)."""
        drawn = self._draw(**self.values)
        return drawn if isinstance(drawn, tuple) else (drawn, '')

    def widget(self) -> Any:
        """The sliders with the picture under them, as one ipywidgets widget."""
        if self._box is None:
            self._box = self._build()
        return self._box

    def _build(self) -> Any:
        import ipywidgets

        forms = _looks([control.label or name.replace('_', ' ') for name, control in self._controls.items()])
        for (name, control), form in zip(self._controls.items(), forms, strict=True):
            self._built[name] = _control(ipywidgets, control, self.values[name], form)
        line = ipywidgets.HTML()
        image = ipywidgets.Image(format='png', layout={'max_width': 'calc(100% - 4px)'})   # its margins

        def redraw(_: Any = None) -> None:
            self.values = {name: widget.value for name, widget in self._built.items()}
            started = time.perf_counter()
            try:
                figure, text = self.picture()
                data, looks = shown(figure)
            except Exception as error:   # of the draw function: the sliders must go on
                line.value = f'{type(error).__name__}: {escape(str(error))}'
                image.layout.visibility = 'hidden'   # and its place is kept: nothing below it moves
                return
            with image.hold_sync():
                image.value, image.width = data['image/png'], str(looks['image/png']['width'])
            image.layout.visibility = 'visible'
            line.value = f'<b>{escape(text)}</b>'
            at_once = time.perf_counter() - started < AT_ONCE
            for widget in self._built.values():
                if hasattr(widget, 'continuous_update'):
                    widget.continuous_update = at_once

        for widget in self._built.values():
            widget.observe(redraw, 'value')
        redraw()
        controls = ipywidgets.Box([*self._built.values()], layout={'flex_flow': 'row wrap'})
        return ipywidgets.VBox([controls, line, image])

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = {'text/plain': repr(self)}, {}
        try:
            figure, text = self.picture()
            data, metadata = shown(_captioned(figure, text) if text else figure)
            data['text/plain'] = text or repr(self)
        except Exception as error:   # of the draw function: other values may be fine
            data['text/plain'] = f'{type(error).__name__}: {error}'
        try:
            view = {'version_major': 2, 'version_minor': 0, 'model_id': self.widget().model_id}
        except ImportError:   # no ipywidgets here: the picture stands alone
            return data, metadata
        return {**data, WIDGET: view}, metadata

    def __repr__(self) -> str:
        return f"Panel({', '.join(f'{name}={value}' for name, value in self.values.items())})"


def _captioned(figure: Figure, text: str) -> Figure:
    """The figure with the line at its top, where no widget shows it."""
    if figure.get_layout_engine() is None:   # make room: its axes would stay where they are
        height = figure.get_figheight()
        share = height / (height + 0.3)
        figure.set_figheight(height + 0.3)
        for ax in figure.axes:
            left, bottom, wide, high = ax.get_position().bounds
            ax.set_position([left, bottom * share, wide, high * share])
    figure.suptitle(text, x=0.01, ha='left', fontsize=10)
    return figure


def _looks(labels: list[str]) -> list[dict[str, Any]]:
    """How controls look: as wide as the longest label needs, so that they stand in columns."""
    label = 0.62 * max(map(len, labels), default=0) + 0.5    # em: no letter but m and w is wider
    return [{'description': text, 'style': {'description_width': f'{label:.1f}em'},
             'layout': {'width': f'{label + 19:.1f}em'}} for text in labels]


def _control(ipywidgets: Any, control: Slider | Choice, value: Any, looks: dict[str, Any]) -> Any:
    if isinstance(control, Choice):
        return ipywidgets.Dropdown(options=list(control.of), value=value, **looks)
    whole = all(isinstance(number, int) for number in control[:4])
    kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
    return kind(value=value, min=control.lowest, max=control.highest, step=control.step, **looks)
