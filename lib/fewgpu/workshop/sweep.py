"""`./workshop.py sweep FOLDER`: one table and one picture of the runs of jobs/job_sweep.sh.

A sweep is a folder: grid.json says what varies, run-N.json is what run N measured, and run-N.end how it ended.
"""

import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fewgpu.workshop.writable import make_writable, written

FEW = 3   # steps: the speed of fewer is that of steps that fill caches


@dataclass(frozen=True)
class Grid:
    """What is run: every combination of values of the flags that have several."""

    script: str
    flags: dict[str, list[str]]   # of each flag its values; of a switch none

    @property
    def varied(self) -> list[str]:
        """The flags with several values, which tell the runs apart."""
        return [flag for flag, values in self.flags.items() if len(values) > 1]

    def runs(self) -> list[dict[str, str]]:
        """Of each run, by its number: the values of the flags that vary. The last flag changes fastest."""
        every = itertools.product(*(self.flags[flag] for flag in self.varied))
        return [dict(zip(self.varied, values)) for values in every]

    def command(self, number: int) -> list[str]:
        """The arguments of the script in run `number`."""
        chosen = {flag: [value] for flag, value in self.runs()[number].items()}
        return [word for flag, values in self.flags.items() for word in (flag, *chosen.get(flag, values))]

    def name(self, number: int) -> str:
        """What run `number` is called, like 'num_microbatches 8, batchsize 32'."""
        return ', '.join(f'{flag.lstrip("-")} {value}' for flag, value in self.runs()[number].items()) or 'the only run'


def read_grid(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """What stands before the first flag, and the values of each flag: `--lr 0.1 0.2` gives {'--lr': ['0.1', '0.2']}.

    A flag that is given twice has its last values. Raises ValueError for a value that is there twice.
    """
    flags: dict[str, list[str]] = {}
    before: list[str] = []
    values = before
    for word in words:
        if word.startswith('--'):
            flag, equals, value = word.partition('=')
            values = flags[flag] = [value] if equals else []
        else:
            values.append(word)
    for flag, values in flags.items():
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ValueError(f'{flag} has the value {twice} twice: name each once')
    return before, flags


@dataclass(frozen=True)
class Run:
    """Run `number` of a sweep: what its script reported, if it has, and how it ended, if it has."""

    number: int
    values: dict[str, str]
    report: dict[str, Any] | None
    end: dict[str, Any] | None   # status, its last words, the job

    @property
    def failed(self) -> bool:
        return self.end is not None and self.end['status'] != 0

    @property
    def speed(self) -> float | None:
        """Samples a second."""
        return self.report and self.report['samples_per_second']

    @property
    def memory(self) -> int | None:
        """Bytes at the peak of the device that needed most."""
        return max((device['peak'] for device in self.report['memory']), default=None) if self.report else None

    @property
    def note(self) -> str:
        """Why there are no figures; empty if there are."""
        if self.end is None:
            return 'has not ended'
        return 'failed' if self.failed else '' if self.report else 'its report is missing or broken'

    @property
    def is_rough(self) -> bool:
        """Whether its speed is that of a few steps."""
        return bool(self.report) and self.report.get('measured_steps', FEW) < FEW


def read(folder: Path) -> tuple[Grid, list[Run]]:
    """The sweep of a folder; what is broken counts as missing. Raises FileNotFoundError if it is none, ValueError if
    its grid is broken."""
    grid = _grid(folder / 'grid.json')

    def stored(name: str) -> dict[str, Any] | None:
        try:
            return json.loads((folder / name).read_text(encoding='utf-8'))
        except (FileNotFoundError, ValueError):   # it runs, or was killed while it wrote
            return None

    runs = []
    for number, values in enumerate(grid.runs()):
        end = stored(f'run-{number}.end')
        if not (isinstance(end, dict) and isinstance(end.get('status'), int)):
            end = None
        report = stored(f'run-{number}.json') if end and end['status'] == 0 else None
        if not _is_report(report):
            report = None
        runs.append(Run(number, values, report, end))
    return grid, runs


def _grid(file: Path) -> Grid:
    try:
        grid = Grid(**json.loads(file.read_text(encoding='utf-8')))
        fits = isinstance(grid.script, str) and isinstance(grid.flags, dict) and all(
            isinstance(values, list) and all(isinstance(value, str) for value in values)
            for values in grid.flags.values())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f'{file} is broken: run the sweep again, into another folder')
    return grid


def _is_report(report: Any) -> bool:
    try:
        return isinstance(report['samples_per_second'], int | float) and isinstance(
            report.get('measured_steps', FEW), int) and all(
            isinstance(device['peak'], int | float) for device in report['memory'])
    except (KeyError, TypeError):
        return False


def table(grid: Grid, runs: Sequence[Run]) -> Table:
    """A row a run; the fastest is bold."""
    drawn = Table(box=None, header_style='bold', pad_edge=False)
    drawn.add_column('run', justify='right')
    for flag in grid.varied:
        drawn.add_column(flag.lstrip('-'), justify='right')
    drawn.add_column('samples/sec', justify='right')
    drawn.add_column('peak GB, fullest device', justify='right')
    drawn.add_column('')
    best = max((run.speed or 0.0 for run in runs), default=0.0)
    for run in runs:
        speed = '' if run.speed is None else f'{run.speed:.1f}'
        memory = '' if run.memory is None else f'{run.memory / 1e9:.3f}'
        drawn.add_row(str(run.number), *run.values.values(), speed, memory, run.note,
                      style='bold' if run.speed and run.speed == best else None)
    return drawn


def draw(grid: Grid, runs: Sequence[Run], path: Path) -> None:
    """Draw speed and memory of every run, side by side; PNG."""
    from fewgpu import plot
    from fewgpu.plot.looks import GREY

    figure = plot.Picture(figsize=(11.0, 1.1 + 0.3 * len(runs)), layout='constrained')
    same = ' '.join(' '.join([flag, *values]) for flag, values in grid.flags.items() if flag not in grid.varied)
    figure.suptitle(f'{grid.script} {same}', x=0.008, ha='left', fontsize=11, color=GREY)
    left, right = figure.subplots(1, 2)
    names = {run.number: grid.name(run.number) for run in runs}
    notes = {names[run.number]: run.note for run in runs if run.report is None}
    plot.bars({names[run.number]: run.speed for run in runs}, left, title='Samples a second', notes=notes)
    plot.bars({names[run.number]: run.memory and run.memory / 1e9 for run in runs}, right, write='{:.3f}',
              title='GB at the peak of the fullest device', notes=notes)
    with written(path, 'FOLDER') as file:
        figure.savefig(file, dpi=150, format='png')


def conclude(folder: Path, console: Console) -> int:
    """Show the table, and write table and picture into the folder; 1 if a run failed, else 0."""
    grid, runs = read(folder)
    page = Console(width=200, file=io.StringIO(), highlight=False)
    for where in (console, page):
        where.print(table(grid, runs))
        if rough := [str(run.number) for run in runs if run.is_rough]:
            where.print(f'Rough, being measured over fewer than {FEW} steps: the speed of run {", ".join(rough)}. '
                        f'More --samples give more steps.')
        for run in runs:
            if run.failed:
                where.print(f'Run {run.number} ({grid.name(run.number)}) failed with exit status {run.end["status"]}: '
                            f'{run.end.get("said", "")}', soft_wrap=True, markup=False)
    with written(folder / 'sweep.txt', 'FOLDER') as file:
        file.write(page.file.getvalue().encode())
    draw(grid, runs, folder / 'sweep.png')
    console.print(f'Table: {folder / "sweep.txt"}. Picture: {folder / "sweep.png"}', soft_wrap=True, markup=False)
    if again := [str(run.number) for run in runs if run.report is None]:
        console.print(f'To run what is missing, submit with --array={",".join(again)} and the same arguments.',
                      soft_wrap=True)
    return int(any(run.failed for run in runs))


def sweep(folder: Annotated[Path, typer.Argument(help='Where the sweep is, such as results/sweep-1a2b3c.')]) -> None:
    """Make the table and the picture of a sweep again; ends with 1 if one of its runs failed."""
    if not (folder / 'grid.json').is_file():
        raise typer.BadParameter(f'{folder} has no grid.json: name the folder of a sweep, as job_sweep.sh prints it')
    try:
        read(folder)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    make_writable('FOLDER', [folder / 'sweep.txt', folder / 'sweep.png'])
    raise typer.Exit(conclude(folder, Console(highlight=False)))
