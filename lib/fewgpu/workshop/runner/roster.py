"""A class: the shared results of all learners, and what they have in common."""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fewgpu.workshop.grading.verdict import Outcome
from fewgpu.workshop.runner.results import NotResults, Results, Row, clean, time_of
from fewgpu.workshop.runner.words import explained

LARGEST = 5 * 2**20   # bytes of a file that is read
MANY_ATTEMPTS = 5     # at one exercise: this learner may want help


@dataclass(frozen=True)
class LeftOut:
    """A file of the folder that tells nothing, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Common:
    """What several learners are stuck on. `misconception` is '' where it is not a known one."""

    exercise: int          #: its number
    check: str             #: the law that they break
    misconception: str
    message: str           #: as one of them saw it
    learners: tuple[str, ...]


@dataclass
class Roster:
    """Learners by their names, and the files that were left out. `titles` are those of the exercises, by number."""

    learners: list[Results]
    left_out: list[LeftOut]
    titles: dict[int, str]

    @property
    def numbers(self) -> list[int]:
        return sorted(self.titles)

    def done(self, number: int) -> int:
        """How many have solved an exercise."""
        return sum(each.done for learner in self.learners if (each := row_of(learner, number)))

    def begun(self, number: int) -> int:
        """How many have tried it and not solved it."""
        return sum(bool(each.attempts) and not each.done for learner in self.learners
                   if (each := row_of(learner, number)))

    def common(self) -> list[Common]:
        """What at least two are stuck on now, most learners first. A step that is yet to be written does not count."""
        stuck: dict[tuple[int, str, str], list[tuple[str, Outcome]]] = {}
        for learner in self.learners:
            current = learner.current
            if current and (wrong := wrong_with(current)) and wrong.misconception != 'unsolved':
                stuck.setdefault((current.number, wrong.title, wrong.misconception), []).append((learner.name, wrong))
        found = [Common(*key, explained(each[0][1]), tuple(name for name, _ in each))
                 for key, each in stuck.items() if len(each) > 1]
        return sorted(found, key=lambda one: (-len(one.learners), one.exercise))


def read(folder: Path, titles: dict[int, str]) -> Roster:
    """The class in a folder: one JSON file a learner; of two files of one learner the newer counts.

    `titles` are those of the kit's own exercises; others are left out. Raises OSError if the folder cannot be read.
    """
    newest: dict[str, tuple[str, Results]] = {}
    left_out: list[LeftOut] = []
    for file in sorted(folder.iterdir()):
        if file.suffix != '.json' or file.name.startswith('.'):
            continue
        try:
            results = Results.from_json(_data(file))
            results.rows = [row for row in results.rows if row.number in titles]
        except NotResults as error:
            left_out.append(LeftOut(clean(file.name), str(error)))
            continue
        before = newest.get(results.id)
        if before and time_of(before[1].written) >= time_of(results.written):
            left_out.append(LeftOut(clean(file.name), f'older than {before[0]}, of the same learner'))
            continue
        if before:
            left_out.append(LeftOut(before[0], f'older than {clean(file.name)}, of the same learner'))
        newest[results.id] = clean(file.name), results
    learners = sorted(_told_apart([results for _, results in newest.values()]), key=_as_in_a_list_of_names)
    return Roster(learners, left_out, titles)


def _data(file: Path) -> Any:
    """What a file holds. Raises NotResults if it cannot be read."""
    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            raise NotResults('no file, or a very large one')
        return json.loads(file.read_text(encoding='utf-8-sig'))
    except OSError as error:
        raise NotResults(f'cannot be read ({error.strerror})') from error
    except UnicodeDecodeError as error:
        raise NotResults('not text') from error
    except json.JSONDecodeError as error:
        raise NotResults(f'broken in line {error.lineno}') from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, NotResults):
            raise
        raise NotResults('not JSON that can be read') from error


def _as_in_a_list_of_names(learner: Results) -> str:
    return unicodedata.normalize('NFKD', learner.name.casefold())   # an accent does not put a name behind z


def _told_apart(learners: list[Results]) -> Iterator[Results]:
    """People of the same name get a part of their ids behind it."""
    counts = Counter(learner.name.casefold() for learner in learners)
    for learner in learners:
        same = counts[learner.name.casefold()] > 1
        yield replace(learner, name=f'{learner.name} ({learner.id[:4]})') if same else learner


def row_of(learner: Results, number: int) -> Row | None:
    return next((each for each in learner.rows if each.number == number), None)


def wrong_with(row: Row) -> Outcome | None:
    """The first thing that is wrong with the last attempt at an exercise."""
    return row.last.first_failure if row.last else None


def wants_help(learner: Results) -> bool:
    """Has tried the current exercise often."""
    return learner.current is not None and learner.current.attempts >= MANY_ATTEMPTS


def ago(time: str | None, now: datetime) -> str:
    """How long ago, in a word or two; a clock that is ahead of ours counts as now."""
    if time is None:
        return ''
    minutes = max(int((now - time_of(time)).total_seconds() // 60), 0)
    for size, unit in ((24 * 60, 'd'), (60, 'h')):
        if minutes >= size:
            return f'{minutes // size} {unit} ago'
    return f'{minutes} min ago' if minutes else 'now'


def as_data(roster: Roster) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        'learners': list(map(_learner, roster.learners)),
        'common': [asdict(one) for one in roster.common()],
        'left_out': [asdict(each) for each in roster.left_out]}


def _learner(learner: Results) -> dict[str, Any]:
    current = learner.current
    wrong = wrong_with(current) if current else None
    return {
        'name': learner.name, 'id': learner.id, 'done': learner.done, 'points': learner.earned,
        'last_at': learner.last_at, 'exercises': list(_exercises(learner.rows)),
        'stuck': current and {'exercise': current.number, 'attempts': current.attempts, 'hints': current.hints,
                              'last_at': current.last_at, 'check': wrong.title if wrong else '',
                              'misconception': wrong.misconception if wrong else ''}}


def _exercises(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {'number': row.number, 'best': row.best, 'points': row.points, 'attempts': row.attempts,
               'hints': row.hints, 'passed_at': row.passed_at, 'solution_seen': row.solution_seen}
