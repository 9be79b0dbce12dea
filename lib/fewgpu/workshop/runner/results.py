"""What a learner has reached, as data: written by `report`, read by `class`.

    {'format': 'fewgpu results', 'version': 1, 'name': 'Ada', 'id': '1f00aa3c', 'written': '2026-03-01T14:05:00+01:00',
     'machine': {'system': 'Linux x86_64', ...}, 'exercises': [{'number': 1, 'name': '01_microbatch', ...}]}

What is read may come from anybody: every type is looked at, and text that could steer a terminal is made harmless.
"""

import contextlib
import importlib.metadata
import platform
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fewgpu.workshop.exercise import all_exercises
from fewgpu.workshop.grading.verdict import Line, Verdict
from fewgpu.workshop.machine import cores
from fewgpu.workshop.runner.progress import Progress, now

FORMAT, VERSION = 'fewgpu results', 1


class NotResults(ValueError):
    """The data are not results of the kit; the text says why."""


@dataclass
class Row:
    """One exercise. Times as in `progress`; `last` is the verdict of the last attempt."""

    number: int
    name: str
    title: str
    best: int = 0
    points: int = 0
    attempts: int = 0
    hints: int = 0
    solution_seen: bool = False
    passed_at: str | None = None
    last_at: str | None = None
    last: Verdict | None = None

    @property
    def done(self) -> bool:
        return self.passed_at is not None


@dataclass
class Results:
    name: str
    id: str
    written: str
    machine: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    @property
    def done(self) -> int:
        """How many exercises are solved."""
        return sum(row.done for row in self.rows)

    @property
    def earned(self) -> int:
        """Points of the best attempts."""
        return sum(row.best for row in self.rows)

    @property
    def current(self) -> Row | None:
        """The exercise that was tried last, if it is not solved; None if it is, or if none was tried."""
        tried = [row for row in self.rows if row.last_at]
        latest = max(tried, key=lambda row: time_of(row.last_at), default=None)
        return None if latest is None or latest.done else latest

    @property
    def last_at(self) -> str | None:
        """When something was checked last."""
        return max((row.last_at for row in self.rows if row.last_at), key=time_of, default=None)

    def shared(self) -> 'Results':
        """What others may see: not what the file printed, nor where it lies; of the code only the lines at fault."""
        def share(row: Row) -> Row:
            if row.last is None:
                return row
            outcomes = [replace(outcome, svg='') for outcome in row.last.outcomes]
            return replace(row, last=replace(row.last, file=Path(row.last.file).name, printed='', outcomes=outcomes))
        return replace(self, machine={}, rows=[share(row) for row in self.rows])

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), 'last': row.last and row.last.to_json()} for row in self.rows]
        return {'format': FORMAT, 'version': VERSION, 'name': self.name, 'id': self.id, 'written': self.written,
                'machine': self.machine, 'exercises': rows}

    @classmethod
    def from_json(cls, data: Any) -> 'Results':
        """Results from data that may be anything. Raises NotResults."""
        if not isinstance(data, dict) or data.get('format') != FORMAT:
            raise NotResults('not results of the kit')
        if data.get('version') != VERSION:
            raise NotResults(f'of another version of the kit ({clean(str(data.get("version")))[:20]})')
        try:
            rows = [_row(each) for each in data['exercises']]
            return cls(*(' '.join(clean(_is(data[key], str)).split()) for key in ('name', 'id', 'written')),
                       {clean(_is(key, str)): clean(str(value)) for key, value in data['machine'].items()}, rows)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise NotResults(f'not as the kit writes it ({clean(str(error))[:60]})') from error


def collect(root: Path, name: str, id: str, progress: Progress) -> Results:
    """The results of the clone at `root`."""
    rows = []
    for exercise in all_exercises():
        entry = progress.of(exercise.name)
        rows.append(Row(exercise.number, exercise.name, exercise.title, entry.best, entry.points, entry.attempts,
                        entry.hints, entry.solution_seen, entry.passed_at, entry.last_at, entry.last))
    versions = {package: version_of(package) or 'not installed' for package in ('torch', 'fewgpu')}
    machine = {'system': f'{platform.system()} {platform.machine()}', 'cores': str(cores()),
               'Python': platform.python_version(), **versions}
    return Results(name, id, now(), machine, rows)


def version_of(package: str) -> str | None:
    """Of an installed package, without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def time_of(text: str | None) -> datetime:
    """A time of `progress` as one that can be compared; what is no time sorts first."""
    with contextlib.suppress(ValueError, TypeError, OverflowError, OSError):
        return datetime.fromisoformat(text).astimezone()
    return datetime.fromtimestamp(0).astimezone()


def clean(text: str) -> str:
    """Text without what could steer a terminal, turn its direction or not be encoded."""
    odd = '\N{REPLACEMENT CHARACTER}'
    return ''.join(each if each.isprintable() or each == '\n' else odd for each in text.expandtabs(4))


def _row(data: dict[str, Any]) -> Row:
    numbers = {key: _is(data[key], int) for key in ('number', 'best', 'points', 'attempts', 'hints')}
    if not all(0 <= number < 10**6 for number in numbers.values()):
        raise ValueError('a number is out of range')
    times = {key: clean(_is(data[key], str)) if data[key] is not None else None for key in ('passed_at', 'last_at')}
    last = _cleaned(Verdict.from_json(data['last'])) if data['last'] is not None else None
    return Row(**numbers, **times, name=clean(_is(data['name'], str)), title=clean(_is(data['title'], str)),
               solution_seen=_is(data['solution_seen'], bool), last=last)


def _cleaned(verdict: Verdict) -> Verdict:
    """The same verdict, its texts made harmless and its figures left out."""
    texts = 'id', 'title', 'status', 'misconception', 'message', 'case', 'picture'
    outcomes = []
    for outcome in verdict.outcomes:
        lines = [Line(_is(line.number, int), clean(_is(line.text, str)), clean(_is(line.file, str)))
                 for line in outcome.lines]
        outcomes.append(replace(outcome, points=_is(outcome.points, int), lines=lines, figures={}, svg='', seconds=0.0,
                                **{key: clean(_is(getattr(outcome, key), str)) for key in texts}))
    return replace(verdict, exercise=_is(verdict.exercise, int), name=clean(_is(verdict.name, str)), file='',
                   printed='', seed=_is(verdict.seed, int), seconds=0.0, outcomes=outcomes)


def _is(value: Any, type_: type) -> Any:
    if not isinstance(value, type_) or type_ is int and isinstance(value, bool):
        raise TypeError(f'{value!r} is not of type {type_.__name__}')
    return value
