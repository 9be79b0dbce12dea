"""What a grader says about one exercise, as data: shown in a terminal, in a notebook, in a report, and kept as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

PASSED, FAILED, BLOCKED = 'passed', 'failed', 'blocked'


@dataclass(frozen=True)
class Line:
    """A line of the learner's file: its number, what it says, and the file's name if that is another one."""

    number: int
    text: str
    file: str = ''


@dataclass
class Outcome:
    """What became of one check.

    `message`, `case` and `picture` are plain text: a sentence or two; the smallest failing case, in lines of at most
    76 characters; a drawing of it, at most 78 characters wide. `svg` is a picture for pages and notebooks. `figures` is
    what is shown beside and never graded. A check is blocked when one that it builds upon has failed.
    """

    id: str                    #: stable: the check's name in its grader
    title: str                 #: the law that the work has to keep, in words
    points: int
    status: str = PASSED
    misconception: str = ''    #: stable; '' if nothing is wrong or it is not a known one
    message: str = ''
    case: str = ''
    lines: list[Line] = field(default_factory=list)
    picture: str = ''
    svg: str = ''
    figures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.status == PASSED


@dataclass
class Verdict:
    """What became of all checks of an exercise, in their order.

    Where the file as a whole is at fault (it does not load, or ends Python), the first outcome is that of the check
    `file`, which has no points, and all that did not run is blocked.
    """

    exercise: int
    name: str                  #: '05_gpipe_schedule'
    file: str                  #: what was graded
    seed: int                  #: of the random cases; the same seed tries the same ones
    outcomes: list[Outcome]
    printed: str = ''          #: what the learner's file printed, shortened
    seconds: float = 0.0

    @property
    def points(self) -> int:
        """What could be earned."""
        return sum(outcome.points for outcome in self.outcomes)

    @property
    def earned(self) -> int:
        return sum(outcome.points for outcome in self.outcomes if outcome.passed)

    @property
    def passed(self) -> bool:
        return all(outcome.passed for outcome in self.outcomes)

    @property
    def failures(self) -> Iterator[Outcome]:
        return (outcome for outcome in self.outcomes if outcome.status == FAILED)

    @property
    def first_failure(self) -> Outcome | None:
        return next(self.failures, None)

    def to_json(self) -> dict[str, Any]:
        """All of it, and the sums, as plain data."""
        return {**asdict(self), 'passed': self.passed, 'points': self.points, 'earned': self.earned}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> 'Verdict':
        """What `to_json` gave, read again. Raises KeyError, TypeError or AttributeError for other data."""
        names = ('exercise', 'name', 'file', 'seed', 'printed', 'seconds')
        return _typed(cls, {**{name: data[name] for name in names},
                            'outcomes': [outcome(each) for each in data['outcomes']]})


def outcome(data: dict[str, Any]) -> Outcome:
    """An outcome from plain data. Raises KeyError, TypeError or AttributeError for other data."""
    lines = [_typed(Line, line) for line in data['lines']]
    figures = {str(key): str(text) for key, text in data['figures'].items()}
    return _typed(Outcome, {**data, 'lines': lines, 'figures': figures})


def _typed(cls: type, data: dict[str, Any]) -> Any:
    """A dataclass of these values, which have to be of the types of its fields."""
    for each in fields(cls):
        wanted = getattr(each.type, '__origin__', each.type)
        if each.name in data and not isinstance(data[each.name], (int, float) if wanted is float else wanted):
            raise TypeError(f'{each.name} is {data[each.name]!r:.40}')
    return cls(**data)
