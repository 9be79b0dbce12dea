"""`./workshop.py selfcheck`: the proof that every exercise fails unsolved, and passes solved."""

import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.grading.grade import GraderError, grade
from fewgpu.workshop.grading.grader import Hints, checks_of
from fewgpu.workshop.grading.verdict import Verdict
from fewgpu.workshop.runner.choose import chosen, console, every, leave_nothing_behind
from fewgpu.workshop.runner.fresh import fresh

POINTS = 10   # of every exercise


@dataclass
class Result:
    """Of one exercise: what came out of its two files, and all that is wrong with it, in sentences."""

    exercise: Exercise
    unsolved: Verdict | None = None
    solved: Verdict | None = None
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def selfcheck(
    exercises: Annotated[list[str] | None, typer.Argument(
        metavar='[NN ...]', help='Their numbers. Default: all.')] = None,
    seed: Annotated[int | None, typer.Option(
        min=0, help='Of the random cases. Default: another one each time.')] = None,
) -> None:
    """Prove that every exercise fails unsolved and passes solved. Your own files are not looked at.

    Exit code 0 if that is so, 1 if not.
    """
    asked_for, out = [chosen(number) for number in exercises] if exercises else every(), console()
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    leave_nothing_behind()
    started, results = time.monotonic(), []
    try:
        for exercise in asked_for:
            if out.is_terminal:
                out.print(Text(f'checking {exercise.name} ...', 'dim'), end='\r')
            results.append(examine(exercise, seed))
            for sentence in results[-1].wrong:
                out.print(Text(f'{exercise.number:02}: {sentence}'))
    except KeyboardInterrupt:
        out.print('Stopped.                                    ')
        raise typer.Exit(130) from None
    out.print(_table(results, unicode=out.encoding.lower().startswith('utf')))
    bad = sum(bool(result.wrong) for result in results)
    said = 'Every exercise fails unsolved and passes solved'
    if bad:
        said = f'{bad} of {len(results)} exercises are not in order'
    out.print(Text(f'{said} (seed {seed}, {time.monotonic() - started:.0f} s).', 'bold'))
    raise typer.Exit(1 if bad else 0)


def examine(exercise: Exercise, seed: int) -> Result:
    """Grade the exercise as it is handed out, and its solution."""
    result, started = Result(exercise), time.monotonic()
    try:
        result.wrong += faults(exercise)
        with tempfile.TemporaryDirectory(prefix='fewgpu-') as folder:
            file = Path(folder, exercise.file.name)
            file.write_text(fresh(exercise), encoding='utf-8')
            result.unsolved = grade(exercise, file, seed=seed)
        result.solved = grade(exercise, exercise.solution, seed=seed)
    except (GraderError, ValueError, ImportError, AttributeError) as error:
        result.wrong.append(f'{type(error).__name__}: {error}')
        return result
    finally:
        result.seconds = time.monotonic() - started
    if result.unsolved.passed:
        result.wrong.append('it passes as it is handed out')
    first = result.unsolved.first_failure
    if first and first.misconception in ('syntax-error', 'does-not-load', 'crashed'):
        result.wrong.append(f'as it is handed out, it cannot be used: {first.message}')
    for failure in result.solved.failures:
        result.wrong.append(f'its solution fails: {failure.title}: {failure.message}')
    return result


def faults(exercise: Exercise) -> Iterator[str]:
    """What is wrong with an exercise before anything is graded."""
    _ = exercise.title, exercise.minutes   # a ValueError if there are none
    if not exercise.file.is_file():
        yield f'there is no {exercise.file}'
    grader = exercise.grader()
    checks = checks_of(grader)
    total = sum(check.points for check in checks)
    if total != POINTS:
        yield f'its checks have {total} points, and not {POINTS}'
    for check in checks:
        if not isinstance(grader.HINTS.get(check.id), Hints):
            yield f'there is no hint for {check.id}'
        if unknown := set(check.after) - {other.id for other in checks}:
            yield f'{check.id} builds upon what is not there: {", ".join(sorted(unknown))}'


def _table(results: list[Result], *, unicode: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if unicode else box.ASCII2, padding=(0, 1, 0, 0))
    for name in ('exercise', 'unsolved', 'solved', 'slowest check', 'seconds'):
        table.add_column(name, justify='right' if name == 'seconds' else 'left', no_wrap=True)
    for result in results:
        outcomes = result.solved.outcomes if result.solved else []
        slowest = max(outcomes, key=lambda outcome: outcome.seconds, default=None)
        table.add_row(result.exercise.name, _said(result.unsolved), _said(result.solved),
                      f'{slowest.id} {slowest.seconds:.1f} s' if slowest else '', f'{result.seconds:.1f}',
                      style='red' if result.wrong else '')
    return table


def _said(verdict: Verdict | None) -> str:
    return f'{verdict.earned} of {verdict.points}' if verdict else 'not graded'
