"""Which exercise is meant, and what the commands have in common."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import typer
from rich.console import Console

from fewgpu.workshop.exercise import Exercise, all_exercises, find
from fewgpu.workshop.runner.progress import Progress

NUMBER = 'Its number, as in 05. Default: the next one that is not done.'


def chosen(number: str) -> Exercise:
    """The exercise of that number, name or file. A wrong one is a sentence, and exit code 2."""
    try:
        return find(number)
    except (LookupError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error.args[0])) from None


def every() -> list[Exercise]:
    """All exercises. Without a clone of the kit: a sentence, and exit code 2."""
    try:
        return all_exercises()
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None


def next_one(exercises: list[Exercise], progress: Progress, after: Exercise | None = None) -> Exercise | None:
    """The first that is not done: first among those that come later, then among the earlier ones."""
    first = exercises.index(after) + 1 if after in exercises else 0
    others = exercises[first:] + exercises[:first]
    return next((exercise for exercise in others if exercise != after and not progress.of(exercise.name).done), None)


def chosen_or_next(number: str | None) -> Exercise:
    """The one that is named, else the next one; where all are done, a sentence and exit code 0."""
    if number is not None:
        return chosen(number)
    exercises = every()
    if not exercises:
        raise typer.BadParameter('this clone has no exercises')
    exercise = next_one(exercises, Progress.load(exercises[0].root))
    if exercise is None:
        console().print('All exercises are done. Name one to see it again, for example 01.')
        raise typer.Exit(0)
    return exercise


def command(rest: str) -> str:
    """A command of the kit, as it is typed on this system."""
    return f"{'py workshop.py' if os.name == 'nt' else './workshop.py'} {rest}"


def console(*, stderr: bool = False, **settings: object) -> Console:
    """Where commands print to. Characters that a terminal does not know become question marks."""
    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, 'reconfigure'):
        stream.reconfigure(errors='replace')
    return Console(highlight=False, markup=False, emoji=False, stderr=stderr, **settings)


def leave_nothing_behind() -> None:
    """Whoever ends this process, or closes its terminal: what it has started is ended, too, on the way out."""
    def end(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    for name in ('SIGTERM', 'SIGHUP'):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:   # `nohup` ignores it: so do we
            signal.signal(number, end)
