"""Demonstrations: one system of the lectures each, its headline claim put to the test at a size that runs here.

A demonstration is a module of this package whose docstring's first line says what it shows, with a function

    def demo(show: Show) -> Figure: ...

that runs the system, prints tables (`show.table`) and sentences (`show.say`), notes what it found about
claims of the lectures (`show.claims.test('C24', confirmed, found, because=...)`), and returns its picture.
Every figure that it prints is measured, counted or simulated in that very run, or is said to be published.
"""

import ast
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fewgpu.workshop.claims import TEXTS, Claims

#: In the order of the lectures. The module of 'zero-infinity' is zero_infinity.
DEMOS: Sequence[str] = ('pipedream', 'partitioner', 'two-bw', 'depth-width', 'pipemare', 'hydra', 'zero',
                        'zero-infinity', 'tensor', 'unet', 'hybrid', 'gems', 'plan')

#: What judges a claim where it is not a run of this machine alone.
JUDGES = ('the simulator', 'the cost model', 'the planner', 'published figures')
#: Where a run of this machine and one of JUDGES judge together.
WITH_A_RUN = 'this run and '

CODES = ('C and a number names a claim of the lectures behind the course, P and a number one of a paper. "By ..." says '
         'what judged it, if not a run of this machine alone.')
WIDEST = 100   # characters of a line of text


class Findings(Claims):
    """Findings, printed as wide as the console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def test(self, claim: str, confirmed: bool | None, found: str, *, by: str = '', because: str = '') -> None:
        """Note and print a finding; before the first, what the number of a claim means.

        `by` is '' for a run of this machine, else one of JUDGES, or WITH_A_RUN and one of them. Raises KeyError for a
        claim that nobody made, and ValueError for another judge.
        """
        if by and by.removeprefix(WITH_A_RUN) not in JUDGES:
            raise ValueError(f'a claim is judged by a run, or by one of {", ".join(JUDGES)}; not by {by!r}')
        is_first = not self._findings
        with redirect_stdout(io.StringIO()):   # its lines are those of a notebook's page
            super().test(claim, confirmed, found, by=by, because=because)
        if is_first:
            self._console.print()
            self._line(CODES, style='dim')
        self._line(f'{claim}: {TEXTS[claim]}')
        self._line(f'{self._findings[claim].verdict}: {found}', indent=2)
        if because:
            self._line(because, indent=2)

    def _line(self, text: str, *, indent: int = 0, style: str = '') -> None:
        for line in Text(text).wrap(self._console, min(self._console.width, WIDEST) - indent):
            line.rstrip()
            self._console.print(' ' * indent + line.plain, markup=False, style=style, soft_wrap=True)


class Show:
    """Where a demonstration prints, and what it finds."""

    def __init__(self, console: Console) -> None:
        self._console, self.claims = console, Findings(console)

    def say(self, text: str) -> None:
        """A sentence, or a few."""
        self._console.print(text, markup=False, width=min(self._console.width, WIDEST))

    def table(self, table: RenderableType) -> None:
        """A table of rich, with space around it."""
        self._console.print()
        self._console.print(table)
        self._console.print()


def headed(title: str, *headings: str) -> Table:
    """A table of figures; a column without a heading holds text."""
    table = Table(title=title, title_justify='left', caption_justify='left')
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
