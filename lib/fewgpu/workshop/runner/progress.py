"""What a learner has done so far: exercises/progress.json, a file of their own that git ignores.

    {'version': 1, 'exercises': {'01_microbatch': {'best': 7, 'points': 10, 'attempts': 3, ...}}}

It is written under a lock and replaced as a whole, so that two windows at once lose nothing. A file that cannot be read
is kept beside, and `Progress.note` says so.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fewgpu.workshop.grading.verdict import Verdict
from fewgpu.workshop.runner.lock import locked
from fewgpu.workshop.runner.whole import write

VERSION = 1


@dataclass
class Entry:
    """One exercise. Times are texts like '2026-03-01T14:05:00+01:00', in the zone where they were."""

    best: int = 0                      #: points of the best attempt
    points: int = 0                    #: what could be earned; 0 before the first attempt
    passed_at: str | None = None       #: when it was solved first
    attempts: int = 0                  #: how often it was checked
    shown: dict[str, int] = field(default_factory=dict)   #: by check: the last step of its hint that was shown
    solution_seen: bool = False        #: was the solution shown before it was solved?
    last: Verdict | None = None        #: of the last attempt
    last_at: str | None = None

    @property
    def done(self) -> bool:
        return self.passed_at is not None

    @property
    def hints(self) -> int:
        """How many steps of hints were shown."""
        return sum(self.shown.values())

    def is_older_than(self, file: Path) -> bool:
        """Has that file changed since the last attempt?"""
        return self.last_at is not None and file.stat().st_mtime > datetime.fromisoformat(self.last_at).timestamp() + 1


@dataclass
class Progress:
    """All exercises. `note` is a sentence for the learner if the file could not be read, else ''."""

    entries: dict[str, Entry] = field(default_factory=dict)
    note: str = ''

    @classmethod
    def load(cls, root: Path) -> 'Progress':
        """That of the clone at `root`. A broken file is put aside; without any it is empty."""
        try:
            return _read(file_of(root))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            return cls(note=f'{_short(file_of(root))} cannot be read ({error.strerror}): what is done is not known.')
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            with contextlib.suppress(OSError), locked(_lock_of(root)):
                return _read_or_put_aside(root)
            return cls(note=f'{_short(file_of(root))} is broken, and cannot be put aside: the folder is read-only.')

    def of(self, name: str) -> Entry:
        """By the name of the exercise; an empty entry if it was never tried."""
        return self.entries.get(name) or Entry()


def record(root: Path, verdict: Verdict, *, is_attempt: bool = True) -> Progress:
    """Note a verdict, of one more attempt if it is one. Raises OSError if the file cannot be written."""
    def note(entry: Entry) -> None:
        entry.attempts += is_attempt
        entry.last, entry.last_at, entry.points = verdict, now(), verdict.points
        entry.best = max(entry.best, verdict.earned)
        if verdict.passed:
            entry.passed_at = entry.passed_at or entry.last_at
    return _change(root, verdict.name, note)


def record_hint(root: Path, name: str, step: int, check: str = '') -> Progress:
    """Note that step 1 to 4 of the hint for a check was shown. Raises OSError if the file cannot be written."""
    def note(entry: Entry) -> None:
        entry.shown[check] = max(entry.shown.get(check, 0), step)
    return _change(root, name, note)


def record_solution(root: Path, name: str) -> Progress:
    """Note that the solution was shown. Raises OSError if the file cannot be written."""
    def note(entry: Entry) -> None:
        entry.solution_seen = entry.solution_seen or not entry.done
    return _change(root, name, note)


def file_of(root: Path) -> Path:
    """Where the progress of the clone at `root` is kept."""
    return root / 'exercises' / 'progress.json'


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec='seconds')


def _change(root: Path, name: str, change: Callable[[Entry], None]) -> Progress:
    with locked(_lock_of(root)):
        progress = _read_or_put_aside(root)
        change(progress.entries.setdefault(name, Entry()))
        _write(file_of(root), progress)
    return progress


def _lock_of(root: Path) -> Path:
    return file_of(root).with_name('.progress.lock')   # the file itself is replaced, and a lock would go with it


def _short(file: Path) -> str:
    return f'{file.parent.name}/{file.name}'


def _read(file: Path) -> Progress:
    data = json.loads(file.read_text(encoding='utf-8'))
    if data['version'] != VERSION:
        raise ValueError(f"version {data['version']}")
    return Progress({name: _entry(each) for name, each in data['exercises'].items()})


def _read_or_put_aside(root: Path) -> Progress:
    """For those who hold the lock."""
    file = file_of(root)
    try:
        return _read(file)
    except FileNotFoundError:
        return Progress()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        aside = next(place for number in range(1, 10**6)
                     if not (place := file.with_name(f'progress.broken-{number}.json')).exists())
        file.rename(aside)
        return Progress(note=f'{_short(file)} is broken, or of another version of the kit: it is kept as {aside.name}, '
                             'and a new one begins.')


_TYPES = {'best': int, 'points': int, 'passed_at': str | None, 'attempts': int, 'shown': dict, 'solution_seen': bool,
          'last_at': str | None}


def _entry(data: dict[str, Any]) -> Entry:
    """Raises TypeError, KeyError or AttributeError for other data. A verdict that another kit wrote is left out."""
    for name, type_ in _TYPES.items():
        if not isinstance(data[name], type_):
            raise TypeError(f'{name} is {data[name]!r}')
    sum(data['shown'].values())
    for name in ('passed_at', 'last_at'):
        if data[name] is not None:
            datetime.fromisoformat(data[name])
    last = None
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        last = Verdict.from_json(data['last'])
    return Entry(**{name: data[name] for name in _TYPES}, last=last)


def _write(file: Path, progress: Progress) -> None:
    entries = {name: {**asdict(entry), 'last': entry.last and entry.last.to_json()}
               for name, entry in sorted(progress.entries.items())}
    write(file, json.dumps({'version': VERSION, 'exercises': entries}, indent=1) + '\n')
