"""`check(5)` in a notebook: the verdict of `./workshop.py check 05` as HTML, with its pictures."""

import base64
import contextlib
import os
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from fewgpu.workshop.exercise import Exercise, all_exercises, find, real
from fewgpu.workshop.grading.grade import FILE, grade
from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, PASSED, Outcome, Verdict
from fewgpu.workshop.runner import words
from fewgpu.workshop.runner.choose import console, next_one
from fewgpu.workshop.runner.graded import noted
from fewgpu.workshop.runner.progress import Entry, Progress
from fewgpu.workshop.runner.show import Screen

_MARKS = {PASSED: ('✓', '#1a7f37'), FAILED: ('✗', '#cf222e'), BLOCKED: ('·', 'inherit')}
_FRAME = 'border-left:4px solid {colour};padding:2px 12px;margin:4px 0;max-width:60em;line-height:1.4'
_CODE = ('margin:4px 0;padding:6px 8px;background:rgba(128,128,128,.12);color:inherit;overflow-x:auto;white-space:pre;'
         'font-size:90%')
_TABLE = 'margin:6px 0;border-collapse:collapse;border:none;color:inherit;font-size:inherit'


class Checked:
    """A verdict that has been shown. True if the exercise is right; `verdict` is all that is known."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def __bool__(self) -> bool:
        return self.verdict.passed

    def __repr__(self) -> str:
        verdict = self.verdict
        return f'<exercise {verdict.exercise:02}: {verdict.earned} of {words.points_in_words(verdict.points)}>'

    def _ipython_display_(self) -> None:
        """As the value of a cell it is not shown again."""


def check(number: int | str, file: str | Path | None = None, *, seed: int | None = None) -> Checked:
    """Check an exercise and show what came out, here in the notebook.

    `file` is another file than the exercise's own, and is not noted down as yours; `seed` tries the same random cases
    again. Stop it as any cell: nothing goes on behind. Raises LookupError for an exercise that is not there,
    FileNotFoundError for a file, and GraderError where the kit itself fails.

    With FEWGPU_CHECK=solutions in the environment, as tests of the notebooks set it, our solution stands in for
    the learner's file, and AssertionError is raised if it fails.
    """
    exercise = find(number)
    proving = os.environ.get('FEWGPU_CHECK') == 'solutions'
    given = Path(file) if file is not None else exercise.solution if proving else None
    with _shown(exercise, real(given or exercise.file)) as shown:
        verdict = grade(exercise, given, seed=seed, on_outcome=shown.row)
        own = Path(verdict.file) == real(exercise.file)
        progress, note = noted(exercise, verdict) if own else (Progress.load(exercise.root), '')
        following = next_one(all_exercises(), progress, exercise)
        shown.end(verdict, progress.of(exercise.name) if own else None, following, note)
    assert verdict.passed or not proving or file is not None, f'the solution of {exercise.name} does not pass'
    return Checked(verdict)


class _Cell:
    """Output of a notebook's cell, replaced as the checks end."""

    def __init__(self, exercise: Exercise, file: Path) -> None:
        from IPython.display import HTML, display
        self._html, self._exercise, self._file = HTML, exercise, file
        self._done: list[Outcome] = []
        self._handle = display(HTML(self._so_far('Checking ...')), display_id=True)

    def _so_far(self, last: str) -> str:
        return _framed(begin(self._exercise, self._file) + rows(self._done) + f'<div>{escape(last)}</div>', 'gray')

    def row(self, outcome: Outcome) -> None:
        self._done.append(outcome)
        self._show(self._so_far('Checking ...'))

    def end(self, verdict: Verdict, entry: Entry | None, following: Exercise | None, note: str) -> None:
        self._show(page(verdict, self._exercise, entry, following, note))

    def stop(self, why: str) -> None:
        self._show(self._so_far(why))

    def _show(self, text: str) -> None:
        if self._handle is not None:
            self._handle.update(self._html(text))


class _Terminal:
    """The same in a terminal, for those who call it from Python."""

    def __init__(self, exercise: Exercise, file: Path) -> None:
        self._console = console()
        self._screen = Screen(self._console, exercise, file)
        self._exercise = exercise
        self._screen.begin()

    def row(self, outcome: Outcome) -> None:
        self._screen.row(outcome)

    def end(self, verdict: Verdict, entry: Entry | None, following: Exercise | None, note: str) -> None:
        self._screen.end(verdict, entry, following, own=entry is not None)
        if note:
            self._console.print(note)

    def stop(self, why: str) -> None:
        self._console.print(why)


@contextlib.contextmanager
def _shown(exercise: Exercise, file: Path) -> Iterator[Any]:
    shown = (_Cell if _is_notebook() else _Terminal)(exercise, file)
    try:
        yield shown
    except BaseException as error:
        shown.stop('Stopped.' if isinstance(error, KeyboardInterrupt) else 'It could not be checked.')
        raise


def _is_notebook() -> bool:
    """Is there a kernel of Jupyter round us?"""
    shell = sys.modules['IPython'].get_ipython() if 'IPython' in sys.modules else None
    return hasattr(shell, 'kernel')


def page(verdict: Verdict, exercise: Exercise, entry: Entry | None, following: Exercise | None, note: str = '') -> str:
    """The whole verdict as HTML, without scripts, in the colours of the page that it is on."""
    parts = [begin(exercise, Path(verdict.file)), rows(verdict.outcomes)]
    failures = list(verdict.failures)
    for number, outcome in enumerate(failures):
        body = failure(outcome, verdict, exercise)
        title = f'<b>{escape(_name(outcome, verdict))}</b>'
        if number == 0:
            parts.append(f'<div style="margin-top:8px">{title}{body}</div>')
        else:
            parts.append(f'<details style="margin-top:4px"><summary>{title}</summary>{body}</details>')
    if printed := words.printed(verdict):
        parts.append(f'<details style="margin-top:4px"><summary>Your file printed</summary>{_code(printed)}</details>')
    parts.append(f'<div style="margin-top:8px"><b>{escape(words.result(verdict, entry))}</b></div>')
    for purpose, command in words.what_next(verdict, exercise, entry is not None, following, in_cell=True):
        parts.append(f'<div>{escape(purpose)}: <code>{escape(command)}</code></div>')
    if note:
        parts.append(f'<div>{escape(note)}</div>')
    return _framed(''.join(parts), _MARKS[PASSED if verdict.passed else FAILED][1])


def begin(exercise: Exercise, file: Path) -> str:
    """Which file is graded, and what it is about."""
    return (f'<div><code>{escape(words.near(file, exercise.root))}</code></div>'
            f'<div><b>Exercise {exercise.number:02}: {escape(exercise.title)}</b></div>')


def rows(outcomes: list[Outcome]) -> str:
    """A line a check."""
    lines, cell = [], 'padding:1px 8px 1px 0;text-align:left;vertical-align:top;background:none;border:none'
    checks = [outcome for outcome in outcomes if outcome.id != FILE[0]]
    for outcome in outcomes:
        number = checks.index(outcome) + 1 if outcome in checks else ''
        mark, colour = _MARKS[outcome.status]
        below = [outcome.message] if outcome.status == BLOCKED and outcome.message else []
        below += [f'{name}: {value}' for name, value in outcome.figures.items()]
        small = ''.join(f'<div style="opacity:.7">{escape(text)}</div>' for text in below)
        lines.append(f'<tr style="background:none"><td style="{cell};color:{colour}"><b>{mark}</b></td>'
                     f'<td style="{cell};text-align:right">{number}</td>'
                     f'<td style="{cell};white-space:nowrap">{words.points(outcome)}</td>'
                     f'<td style="{cell}">{escape(outcome.title)}{small}</td></tr>')
    return f'<table style="{_TABLE}">{"".join(lines)}</table>'


def failure(outcome: Outcome, verdict: Verdict, exercise: Exercise) -> str:
    """What is wrong, in which case, where, and a drawing of it."""
    parts = [f'<div>{escape(words.explained(outcome))}</div>']
    if outcome.case:
        parts.append(_code(outcome.case))
    if outcome.svg:   # as an image: what it names and styles stays inside
        data = base64.b64encode(outcome.svg.encode()).decode()
        parts.append(f'<img alt="{escape(outcome.picture or outcome.title)}" src="data:image/svg+xml;base64,{data}" '
                     'style="max-width:100%;background:white">')
    elif outcome.picture:
        parts.append(_code(outcome.picture))
    for line in outcome.lines:
        where = escape(words.place(line, verdict, exercise.root))
        parts.append(f'<div><code>{where}</code></div>{_code(line.text.strip())}')
    return ''.join(parts)


def _name(outcome: Outcome, verdict: Verdict) -> str:
    checks = [each for each in verdict.outcomes if each.id != FILE[0]]
    return f'Check {checks.index(outcome) + 1}: {outcome.title}' if outcome in checks else outcome.title


def _code(text: str) -> str:
    return f'<pre style="{_CODE}">{escape(words.plain(text).rstrip())}</pre>'


def _framed(content: str, colour: str) -> str:
    return f'<div style="{_FRAME.format(colour=colour)}">{content}</div>'
