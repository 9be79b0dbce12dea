"""Bars that compare figures, and the memory of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fewgpu.plot.looks import ACTIVATIONS, GREY, PARAMETERS, add_patch, head, label_rows, new_axes, say

if TYPE_CHECKING:   # pictures of schedules need no torch
    from fewgpu.meter import Memory

BAR = '#6d9cc0'


def bars(figures: Mapping[str, float | None], ax: Axes | None = None, *, title: str = '',
         write: str = '{:.1f}', notes: Mapping[str, str] | None = None) -> Figure:
    """Draw one horizontal bar a figure, which `write` formats at the bar's end, with a note if
    there is one. A figure that is None was not measured: its note is all there is."""
    ax = ax or new_axes(6.0, 0.6 + 0.38 * len(figures))
    longest = max((value for value in figures.values() if value), default=1.0)
    for row, (name, value) in enumerate(figures.items()):
        note = (notes or {}).get(name, '')
        if value is not None:
            ax.add_patch(Rectangle((0.0, row - 0.3), value, 0.6, facecolor=BAR))
            note = f'{write.format(value)}  {note}'
        say(ax, f'{name}: {note}'.rstrip())
        _end_label(ax, value or 0.0, row, note)
    label_rows(ax, figures)
    _bare(ax, longest)
    head(ax, title)
    return ax.figure


def memory_bars(memory: Mapping[str, Sequence[Memory]], ax: Axes | None = None, *,
                title: str = '') -> Figure:
    """Draw the peak memory of every device, stacked: parameters and buffers, then everything else
    (activations; gradients and optimizer states too). A group of bars a name, a bar a device."""
    ax = ax or new_axes(6.0, 0.8 + 0.42 * sum(map(_height, memory.values())))
    longest = max((device.peak for devices in memory.values() for device in devices), default=1)
    middles, top = [], 0.0
    for name, devices in memory.items():
        middles.append(top + _height(devices) / 2)
        bar = (_height(devices) - 0.2) / max(len(devices), 1)
        for index, device in enumerate(devices):
            y = top + 0.1 + bar * (index + 0.5)
            add_patch(ax, PARAMETERS, 0.0, y, device.parameters, 0.88 * bar)
            add_patch(ax, ACTIVATIONS, device.parameters, y, device.peak - device.parameters, 0.88 * bar)
            _end_label(ax, device.peak, y, f'{device.peak / 1e9:.3f} GB  {device.name}')
            say(ax, f'{name}: {device.name} {device.peak / 1e9:.3f} GB')
        if not devices:
            _end_label(ax, 0.0, middles[-1], 'not measured')
        top += _height(devices)
    label_rows(ax, memory, middles)
    ax.set_ylim(top, 0.0)
    _bare(ax, longest)
    head(ax, title, (PARAMETERS, ACTIVATIONS))
    return ax.figure


def _height(devices: Sequence[Memory]) -> float:
    """Of a group of bars: 1 for one or two devices, more for more."""
    return max(1.0, 0.2 + 0.4 * len(devices))


def _bare(ax: Axes, longest: float) -> None:
    """Every bar carries its figure, so the axis needs no ticks."""
    ax.set_xlim(0.0, longest or 1.0)
    ax.set_xticks([])
    ax.spines['bottom'].set_visible(False)


def _end_label(ax: Axes, x: float, y: float, text: str) -> None:
    ax.annotate(text, (x, y), (4, 0), textcoords='offset points', va='center', fontsize=8,
                color='black' if x else GREY, annotation_clip=False)
