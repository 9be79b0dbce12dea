"""`./workshop.py test`: the kit's own tests, run by pytest in a process of their own."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from fewgpu.workshop import repository
from fewgpu.workshop.machine import cores

WORKERS = 2   # that run tests side by side: each grows to 4 GB, and a test may start four ranks
ALONE = {'-s', '--capture=no', '--pdb', '--trace'}   # of pytest's options: they need its terminal


def test(
    everything: Annotated[bool, typer.Option('--all', help='Also the slow tests, and every notebook.')] = False,
    pytest_arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar='-- PYTEST_ARGUMENTS', help='For pytest, after two dashes: -- -x -k gpipe'),
    ] = None,
) -> None:
    """Run the kit's own tests; ends with pytest's exit code.

    Without --all only the tests that take a few seconds each. Tests that need a GPU are skipped where there is none.
    """
    try:
        root = repository()
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from error
    command = [sys.executable, '-m', 'pytest', *pytest_options(root, everything, pytest_arguments or [])]
    with subprocess.Popen(command, cwd=root) as process:
        code = _wait(process)
    raise typer.Exit(code)


def pytest_options(root: Path, everything: bool, extra: list[str]) -> list[str]:
    """What pytest is asked for in the clone at `root`: the fast tests or everything, and the user's own arguments."""
    options = [] if everything else ['-m', 'not slow']
    if not any((root / argument.split('::')[0]).exists() for argument in extra if not argument.startswith('-')):
        options.append('tests')
        if everything and (root / 'notebooks').is_dir():
            options.append('notebooks')
        # Several files at once: half of the tests wait, for a rank or for a paced device, and leave their core idle.
        if cores() >= WORKERS and not ALONE.intersection(extra):
            options += ['-n', str(WORKERS), '--dist', 'loadfile']
    if everything:
        # What cells print is compared, but where they measure (see notebooks/source/make.py). They run in this
        # environment, whatever kernel they name, and solutions are graded in them.
        options += ['-p', 'tests.lessons', '--nbval', '--nbval-current-env', '--nbval-cell-timeout=180']
    return [*options, *extra]


def _wait(process: subprocess.Popen) -> int:
    """The exit code. Ctrl-C reaches pytest as well, which then sums up what it did: wait for that."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
