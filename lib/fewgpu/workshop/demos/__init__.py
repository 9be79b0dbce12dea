"""Demonstrations: one system of the lectures each, its headline claim put to the test at a size that runs here.

A demonstration is a module of this package whose docstring's first line says what it shows, with a function

    def demo(show: Show) -> Figure: ...

that runs the system, prints tables (`show.table`) and sentences (`show.say`), notes what it found about
claims of the lectures (`show.claims.test('C24', confirmed, found, because=...)`), and returns its picture.
Every figure that it prints is measured, counted or simulated in that very run, or is said to be published.
"""

import ast
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console, RenderableType
from rich.table import Table

from fewgpu.workshop.claims import Claims

#: In the order of the lectures. The module of 'zero-infinity' is zero_infinity.
DEMOS: Sequence[str] = ('pipedream', 'partitioner', 'two-bw', 'depth-width', 'pipemare', 'hydra', 'zero', 'zero-infinity', 'tensor', 'unet', 'hybrid',
                        'gems', 'plan')


class Show:
    """Where a demonstration prints, and what it finds."""

    def __init__(self, console: Console) -> None:
        self._console, self.claims = console, Claims()

    def say(self, text: str) -> None:
        """A sentence, or a few."""
        self._console.print(text, markup=False, soft_wrap=not self._console.is_terminal)

    def table(self, table: RenderableType) -> None:
        """A table of rich, with space around it."""
        self._console.print()
        self._console.print(table)
        self._console.print()


def headed(title: str, *headings: str) -> Table:
    """A table of figures; a column without a heading holds text."""
    table = Table(title=title, title_justify='left')
    for heading in headings:
        table.add_column(heading, justify='right' if heading else 'left')
    return table


def summary(name: str) -> str:
    """What a demonstration shows, in a line; nothing is imported for it."""
    source = Path(find_spec(_module(name)).origin).read_text(encoding='utf-8')
    return (ast.get_docstring(ast.parse(source)) or '').partition('\n')[0]


def run(name: str, show: Show) -> Figure:
    """Run one; its picture."""
    return import_module(_module(name)).demo(show)


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"
