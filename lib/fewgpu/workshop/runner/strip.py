"""`./workshop.py strip`: for maintainers, who change a solution: the exercise is made from it."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fewgpu.workshop.runner.choose import chosen, console, every
from fewgpu.workshop.runner.fresh import fresh, keep_copy
from fewgpu.workshop.runner.whole import write
from fewgpu.workshop.runner.words import near


def strip(
    exercises: Annotated[list[str] | None, typer.Argument(
        metavar='[NN ...]', help='Their numbers. Default: all.')] = None,
) -> None:
    """Make exercises from their solutions. A file that somebody has worked on is kept beside."""
    out = console()
    for exercise in [chosen(number) for number in exercises] if exercises else every():
        name = near(exercise.file, exercise.root)
        try:
            text = fresh(exercise)
            if exercise.file.exists() and exercise.file.read_text(encoding='utf-8', errors='replace') == text:
                out.print(Text(f'{name} is up to date'))
                continue
            kept = exercise.file.exists() and not _is_in_git(exercise.file) and keep_copy(exercise.file)
            write(exercise.file, text)
        except (OSError, ValueError) as error:
            out.print(Text(f'{name}: {error}'))
            raise typer.Exit(1) from None
        out.print(Text(f'{name} is made anew' + (f'; what stood there is {near(kept, exercise.root)}' if kept else '')))


def _is_in_git(file: Path) -> bool:
    """Does git have this file just as it is, so that nothing is lost if it is replaced?"""
    def succeeds(*command: str) -> bool:
        return subprocess.run(['git', *command, '--', file.name], cwd=file.parent, capture_output=True).returncode == 0

    try:
        return succeeds('ls-files', '--error-unmatch') and succeeds('diff', '--quiet', 'HEAD')
    except OSError:   # no git here
        return False
