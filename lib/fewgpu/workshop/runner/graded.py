"""One attempt in the terminal: graded with live progress, shown and noted down."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fewgpu.workshop.exercise import Exercise, all_exercises, real
from fewgpu.workshop.grading.grade import GraderError, grade
from fewgpu.workshop.grading.verdict import Verdict
from fewgpu.workshop.runner import words
from fewgpu.workshop.runner.fresh import is_fresh
from fewgpu.workshop.runner.choose import next_one
from fewgpu.workshop.runner.progress import Entry, Progress, record
from fewgpu.workshop.runner.show import Screen

KIT_FAILED = 3   # exit code: it is not the learner's file that is at fault


class NotGraded(SystemExit):
    """There is no verdict, and it was said why."""


def attempt(console: Console, exercise: Exercise, file: Path | None = None, *, seed: int | None = None,
            full: bool = False) -> Verdict:
    """Grade a file (default: the exercise's own, and only that is noted down) and show what came out.

    A file that is not there, or a grader that does not start, is a sentence and `NotGraded`.
    """
    screen = Screen(console, exercise, real(file or exercise.file), full=full)
    screen.begin()
    try:
        with _spinner(console):
            verdict = grade(exercise, file, seed=seed, on_outcome=screen.row)
    except OSError as error:
        console.print(Text(f'{str(error)[:1].upper()}{str(error)[1:]}.'))
        raise NotGraded(2) from None
    except GraderError as error:
        console.print(Text(f'This is a fault of the kit, not of your file: {error}'))
        raise NotGraded(KIT_FAILED) from None
    own = Path(verdict.file) == real(exercise.file)
    progress, note_on_progress = noted(exercise, verdict) if own else (Progress.load(exercise.root), '')
    following = next_one(all_exercises(), progress, exercise)
    screen.end(verdict, progress.of(exercise.name) if own else None, following, own=own)
    if note_on_progress:
        console.print(Text(note_on_progress))
    return verdict


def noted(exercise: Exercise, verdict: Verdict) -> tuple[Progress, str]:
    """The progress with this attempt, and a sentence if something is wrong with its file.

    To check a file that is as it was handed out counts as no attempt: lessons do so before one has begun.
    """
    try:
        progress = record(exercise.root, verdict, is_attempt=not is_fresh(exercise))
        return progress, progress.note
    except OSError as error:
        progress = Progress.load(exercise.root)
        entry = progress.entries.setdefault(exercise.name, Entry())
        entry.last = verdict
        return progress, f'This attempt could not be noted down in exercises/progress.json: {words.why(error)}.'


@contextlib.contextmanager
def _spinner(console: Console) -> Iterator[None]:
    """Shows that something goes on, where there is a terminal for it."""
    if not console.is_terminal:
        yield
        return
    with console.status('checking ...', spinner='dots' if console.encoding.lower().startswith('utf') else 'line'):
        yield
