"""`./workshop.py list`: what is done, and what comes next."""

from rich import box
from rich.table import Table
from rich.text import Text

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.runner.choose import command, console, every, next_one
from fewgpu.workshop.runner.progress import Entry, Progress
from fewgpu.workshop.runner.words import near


def list_exercises() -> None:
    """The exercises: what is done, and what comes next."""
    out, exercises = console(), every()
    if not exercises:
        out.print('This clone has no exercises.')
        return
    progress = Progress.load(exercises[0].root)
    following = next_one(exercises, progress)
    table = Table(box=box.SIMPLE_HEAD if out.encoding.lower().startswith('utf') else box.ASCII2, padding=(0, 1, 0, 0))
    for name, justify in (('', 'left'), ('exercise', 'left'), ('minutes', 'right'), ('points', 'right'), ('', 'left')):
        table.add_column(name, justify=justify, no_wrap=name != 'exercise')
    for exercise in exercises:
        entry = progress.of(exercise.name)
        style = 'green' if entry.done else 'bold' if exercise == following else ''
        table.add_row(f'{exercise.number:02}', Text(exercise.title), str(exercise.minutes), points(entry),
                      state(entry, is_next=exercise == following), style=style)
    out.print(table)
    out.print(Text(summary(exercises, progress)))
    if following:
        out.print(Text(f'Edit {near(following.file, following.root)}, then: {command(f"check {following.number:02}")}'))
    if progress.note:
        out.print(Text(progress.note))


def points(entry: Entry) -> str:
    return f'{entry.best} of {entry.points}' if entry.points else ''


def state(entry: Entry, *, is_next: bool) -> str:
    """In a word."""
    if entry.done:
        return 'done'
    return 'next' if is_next else 'begun' if entry.attempts else ''


def summary(exercises: list[Exercise], progress: Progress) -> str:
    """How far one is, and about how long the rest takes."""
    entries = [progress.of(exercise.name) for exercise in exercises]
    done, earned = sum(entry.done for entry in entries), sum(entry.best for entry in entries)
    text = f'{done} of {len(exercises)} done, {earned} point{"s" * (earned != 1)}.'
    left = sum(exercise.minutes for exercise, entry in zip(exercises, entries) if not entry.done)
    return text if not left else f'{text} The others take about {left} minutes.' if left < 90 \
        else f'{text} The others take about {left / 60:.0f} hours.'
