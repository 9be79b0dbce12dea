"""What a grader is made of. One grader is one module, `fewgpu/workshop/graders/NN_name.py`:

    FORBIDDEN = 'fewgpu.microbatch',               # what would hand the task back
    MISCONCEPTIONS = {'equal-sizes': 'all micro-batches get the same number of rows, and the rest is lost'}
    HINTS = {'sizes': Hints(idea='...', place='...', outline='...')}

    @check('micro-batches differ by one row at most', points=3)
    def sizes(work: Work, random: Random) -> None:
        judge(...)                                 # or raise Failure(...)

A check returns if the work keeps its law, and raises `Failure` if not. What it returns, a dict of texts, is shown
beside and never graded. The points of all checks are 10. `after` names the checks that it builds upon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from fewgpu.workshop.grading.verdict import Line

SECONDS = 10.0          # a check may take, unless it says more
GIGABYTES = 3.0         # a learner's file may use
MOST_TEXT = 300         # characters of a line that is shown


@dataclass(frozen=True)
class Hints:
    """Three of the four steps of a hint; the third step, the failing picture, comes from the verdict."""

    idea: str      #: what to think about
    place: str     #: where in the file, and what is to happen there
    outline: str   #: the code in words, line by line


class Failure(Exception):
    """The work breaks the law of a check. All texts are as in `fewgpu.workshop.grading.verdict.Outcome`.

    `misconception` is a key of the grader's MISCONCEPTIONS (whose sentence is put before `message`) or of
    `fewgpu.workshop.grading.known`.
    """

    def __init__(self, message: str = '', *, misconception: str = '', case: str = '', picture: str = '', svg: str = '',
                 lines: Sequence[Line] = ()) -> None:
        super().__init__(message or misconception)
        self.message, self.misconception, self.case = message, misconception, case
        self.picture, self.svg, self.lines = picture, svg, list(lines)


def first_line(error: BaseException) -> str:
    """The type of an exception and the first line of what it says, as in 'ValueError: no rows'."""
    try:
        text = f'{type(error).__name__}: {error}'.strip().rstrip(':').partition('\n')[0]
    except Exception:   # its own __str__ raises
        return type(error).__name__
    return text if len(text) <= MOST_TEXT else f'{text[:MOST_TEXT]} ...'


class InCase(Exception):
    """The learner's code raised `error` in a case; `misconception` explains it, if it is not ''."""

    def __init__(self, error: BaseException, case: str, misconception: str = '') -> None:
        super().__init__(first_line(error))
        self.error, self.case, self.misconception = error, case, misconception


@dataclass(frozen=True)
class Check:
    """A law, and the function that puts the work to the test."""

    id: str
    title: str
    points: int
    run: Callable[..., dict[str, str] | None]
    after: tuple[str, ...] = ()
    seconds: float = SECONDS


def check(title: str, *, points: int, after: Sequence[str] = (),
          seconds: float = SECONDS) -> Callable[[Callable], Check]:
    """Makes a check of a function of (work, random); the function's name is the check's stable id."""
    def made(function: Callable) -> Check:
        return Check(function.__name__, title, points, function, tuple(after), seconds)
    return made


def checks_of(grader: ModuleType) -> list[Check]:
    """In the order in which they are written."""
    return [value for value in vars(grader).values() if isinstance(value, Check)]
