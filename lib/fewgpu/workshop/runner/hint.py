"""`./workshop.py hint 05`: a ladder of four steps for the first check that fails; each call shows one more."""

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.grading.grade import FILE
from fewgpu.workshop.grading.grader import Hints, checks_of
from fewgpu.workshop.grading.verdict import Outcome
from fewgpu.workshop.runner import words
from fewgpu.workshop.runner.choose import NUMBER, chosen_or_next, command, console
from fewgpu.workshop.runner.progress import Entry, Progress, record_hint
from fewgpu.workshop.runner.show import line_of, print_as_it_is, print_indented

STEPS = 4


@dataclass(frozen=True)
class Step:
    """One step of the ladder. The third is there only where the last attempt has a failing case."""

    number: int
    name: str
    text: str = ''
    drawing: str = ''   #: code or a case, whose lines stay as they are


def hint(
    exercise: Annotated[str | None, typer.Argument(metavar='[NN]', help=NUMBER)] = None,
    check: Annotated[int | None, typer.Option(
        min=1, help='For the check of this number; default: the first that fails.')] = None,
) -> None:
    """A hint, in four steps: the idea, the place, the failing picture, an outline. Each call shows one more."""
    chosen = chosen_or_next(exercise)
    show_hint(console(), chosen, check)


def show_hint(out: Console, exercise: Exercise, check: int | None = None) -> None:
    """The steps that were shown before and one more, for the check of that number or the first that fails."""
    progress = Progress.load(exercise.root)
    entry = progress.of(exercise.name)
    if progress.note:
        out.print(Text(progress.note))
    number = f'{exercise.number:02}'
    if check is None and entry.last and entry.last.passed:
        out.print(Text(f'Exercise {number} is solved. (--check 1 shows the hints for its first check.)'))
        return
    try:
        id_, title, failed = _subject(exercise, entry, check)
    except LookupError as error:
        raise typer.BadParameter(str(error.args[0])) from None
    if failed and id_ == FILE[0]:
        out.print(Text(f'{words.explained(failed)} First of all, the file has to load: '
                       f'{command(f"check {number}")} shows the line.'))
        return
    steps = ladder(exercise.grader().HINTS[id_], failed)
    seen = entry.shown.get(id_, 0)
    more = next((step for step in steps if step.number > seen), None)
    out.print(Rule(Text(f'Exercise {number}'), align='left', characters=line_of(out)))
    out.print(Text(title, 'bold'))
    for step in steps:
        if step.number <= seen or step is more:
            _show(out, step, style='' if step is more or more is None else 'dim')
    _foot(out, exercise, entry, steps, more)
    if more:
        try:
            record_hint(exercise.root, exercise.name, more.number, id_)
        except OSError as error:
            out.print(Text(f'It could not be noted down that this hint was shown: {words.why(error)}.'))


def ladder(hints: Hints, failed: Outcome | None) -> list[Step]:
    """The steps that there are for a check that failed in this way (None: it has not been tried)."""
    steps = [Step(1, 'the idea', hints.idea), Step(2, 'the place', hints.place)]
    if failed and (failed.case or failed.picture):
        drawing = '\n\n'.join(filter(None, (failed.case.rstrip(), failed.picture)))
        steps.append(Step(3, 'where it fails', words.explained(failed), drawing))
    return [*steps, Step(STEPS, 'the outline', drawing=hints.outline)]


def _subject(exercise: Exercise, entry: Entry, check: int | None) -> tuple[str, str, Outcome | None]:
    """Id and title of the check that the hint is for, and how it failed. Raises LookupError for a wrong number."""
    checks = checks_of(exercise.grader())
    failed = entry.last.first_failure if entry.last else None
    if check is None and failed and failed.id in (FILE[0], *(each.id for each in checks)):   # not of an older kit
        return failed.id, failed.title, failed
    if check is not None and check > len(checks):
        raise LookupError(f'exercise {exercise.number:02} has {len(checks)} checks, so --check is 1 to {len(checks)}')
    chosen = checks[(check or 1) - 1]
    failures = entry.last.failures if entry.last else ()
    return chosen.id, chosen.title, next((each for each in failures if each.id == chosen.id), None)


def _show(out: Console, step: Step, style: str) -> None:
    out.print()
    out.print(Text(f'{step.number}. {step.name[:1].upper()}{step.name[1:]}', style='bold'))
    print_indented(out, step.text, 3, style)
    if step.text and step.drawing:
        out.print()
    print_as_it_is(out, step.drawing, 3, style)


def _foot(out: Console, exercise: Exercise, entry: Entry, steps: list[Step], more: Step | None) -> None:
    number = f'{exercise.number:02}'
    out.print()
    if entry.last is None:
        out.print(Text(f'(It was not checked yet: {command(f"check {number}")} says what is wrong.)', 'dim'))
    elif exercise.file.is_file() and entry.is_older_than(exercise.file):
        out.print(Text(f'(Your file has changed since it was checked: {command(f"check {number}")})', 'dim'))
    left = [step for step in steps if more and step.number > more.number]
    if left:
        out.print(Text(f'Again, for {left[0].name}: {command(f"hint {number}")}'))
    else:
        out.print(Text(f'That is all. The solution: {command(f"solution {number} --anyway")}'))
