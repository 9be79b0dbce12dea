"""What is said about a verdict, wherever it is shown: in the terminal and in a notebook."""

import errno
import re
import shlex
from pathlib import Path

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.grading.grade import FILE
from fewgpu.workshop.grading.verdict import BLOCKED, Line, Outcome, Verdict
from fewgpu.workshop.runner.choose import command
from fewgpu.workshop.runner.progress import Entry

MOST_PRINTED = 12   # lines of what the learner's file has printed
_ESCAPES = re.compile(r'\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)')   # colours, titles, ...
_HIDDEN = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160),   # control characters but tab and new line,
                         0x200e, 0x200f, *range(0x202a, 0x202f), *range(0x2066, 0x206a)])   # and what turns text round


def near(file: str | Path, root: Path) -> str:
    """A file by its path from the clone's folder, if it is in there."""
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def points(outcome: Outcome) -> str:
    """As in '2 of 3'; nothing for a check that has none."""
    return f'{outcome.points if outcome.passed else 0} of {outcome.points}' if outcome.points else ''


def points_in_words(count: int) -> str:
    return f'{count} point{"s" * (count != 1)}'


def explained(outcome: Outcome) -> str:
    """What is wrong, or why the check did not run: a sentence, or some."""
    if outcome.status == BLOCKED:
        return outcome.message
    return outcome.message or 'The result is wrong, in a way that the grader has no name for.'


def place(line: Line, verdict: Verdict, root: Path) -> str:
    """As in exercises/01_microbatch.py:42, which many terminals open by a click."""
    file = Path(verdict.file)
    return f'{near(file.with_name(line.file) if line.file else file, root)}:{line.number}'


def printed(verdict: Verdict) -> str:
    """What the learner's file has printed: its first and its last lines."""
    lines = plain(verdict.printed).rstrip().splitlines()
    if len(lines) > MOST_PRINTED:
        left_out = len(lines) - MOST_PRINTED + 1
        between = f'... ({left_out} lines are left out) ...'
        lines = [*lines[:MOST_PRINTED // 2], between, *lines[-MOST_PRINTED // 2 + 1:]]
    return '\n'.join(line if len(line) <= 200 else f'{line[:196]} ...' for line in lines)


def plain(text: str) -> str:
    """Without characters that would move the cursor or change colours."""
    return _ESCAPES.sub('', text).replace('\r\n', '\n').replace('\r', '\n').translate(_HIDDEN)


def why(error: OSError) -> str:
    """What the system says, and what can be done about it."""
    text = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f'{text}: give yourself the right to write there, or copy the kit to a folder of your own'
    if error.errno in (errno.ENOSPC, getattr(errno, 'EDQUOT', errno.ENOSPC)):
        return f'{text}: free some'
    return text


def one_line(text: str, most: int = 220) -> str:
    text = ' '.join(text.split())
    return text if len(text) <= most else f'{text[:most - 4]} ...'


def result(verdict: Verdict, entry: Entry | None) -> str:
    """The sum, and how it compares with earlier attempts; `entry` if this one was noted down."""
    text = f'{verdict.earned} of {points_in_words(verdict.points)}.'
    if entry is None:
        return text
    if verdict.passed:
        return f'{text} Solved!' if entry.attempts < 2 else f'{text} Solved! (attempt {entry.attempts})'
    if entry.done:
        return f'{text} (It was solved before.)'
    return text + (f' (Best so far: {entry.best}.)' if entry.best > verdict.earned else '')


def what_next(verdict: Verdict, exercise: Exercise, own: bool, following: Exercise | None, *,
              in_cell: bool = False) -> list[tuple[str, str]]:
    """(what for, command) of what can be done now. `own`: it was the exercise's own file that was graded."""
    number = f'{exercise.number:02}'
    if verdict.passed:
        see = [('Compare', command(f'solution {number}'))]
        if following is None:
            return [*see, ('All exercises are done', command('report'))]
        about = f'{following.title} (about {following.minutes} minutes)'
        return [*see, (f'Next: {about}', near(following.file, following.root))]
    hint = ('A hint', command(f'hint {number}'))
    first = verdict.first_failure
    if first is not None and first.id == FILE[0]:   # the line that was shown is all that counts
        return []
    if first is None or first.misconception == 'unsolved':   # no case was tried
        return [hint]
    if in_cell:
        file = '' if own else f', {verdict.file!r}'
        return [('The same cases again', f'check({exercise.number}{file}, seed={verdict.seed})'), hint]
    return [('The same cases again', again(verdict, own)), hint]


def again(verdict: Verdict, own: bool, more: str = '') -> str:
    """The command that grades the same file in the same cases."""
    file = '' if own else f' --file {shlex.quote(verdict.file)}'
    return command(f'check {verdict.exercise:02}{file} --seed {verdict.seed}{more}')
