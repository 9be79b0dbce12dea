"""Learners for the tests: clones in which they work, and results that they may have."""

import os
import shutil
import subprocess
import sys
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, PASSED, Line, Outcome, Verdict
from fewgpu.workshop.runner.results import Results, Row

ROOT = Path(__file__).resolve().parents[1]
MADE = '__pycache__', '*.egg-info', 'progress*.json', '.progress*', '.learner.json', '*.before-reset-*', 'site.sh'
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def copy_of_this_clone(folder: Path) -> Path:
    """A clone where nothing has been done yet."""
    for name in ('lib', 'exercises', 'solutions', 'jobs'):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*MADE))
    for name in ('workshop.py', 'requirements.txt', 'pyproject.toml'):
        shutil.copy(ROOT / name, folder / name)
    return folder


def workshop(clone: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess:
    """A command of the kit, run in a clone by this Python."""
    path = os.pathsep.join(filter(None, [extra.pop('first', ''), str(clone / 'lib')]))
    environment = {**os.environ, 'PYTHONPATH': path, 'COLUMNS': '80', 'PYTHONIOENCODING': 'utf-8', **extra}
    return subprocess.run([sys.executable, '-P', '-m', 'fewgpu.workshop', *arguments], cwd=clone, env=environment,
                          text=True, encoding='utf-8', capture_output=True, timeout=120)  # fmt: skip


def at(minutes: int) -> str:
    """A time, as progress keeps it: so many minutes after noon."""
    return (NOON + timedelta(minutes=minutes)).isoformat()


def wrong(misconception: str = 'strided', message: str = 'The rows are dealt out like cards.', **more: str) -> Verdict:
    """A verdict on exercise 1: its first check has failed."""
    failed = Outcome('sizes', 'sizes differ by one row', 3, FAILED, misconception, message,
                     case='sizes(1, 2)\nyours     [1, 0]', lines=[Line(13, 'def sizes(rows, chunks):')], **more)
    return Verdict(1, '01_microbatch', '/home/me/fewgpu/exercises/01_microbatch.py', 7,
                   [failed, Outcome('scatter', 'in order', 7, BLOCKED)], printed='printed by me')


def right() -> Verdict:
    return Verdict(1, '01_microbatch', '01_microbatch.py', 7, [Outcome('sizes', 'sizes differ by one row', 10, PASSED)])


def row(number: int = 1, last: Verdict | None = None, *, minutes: int = 0, attempts: int = 1, **more: object) -> Row:
    """An exercise whose last attempt, so many minutes after noon, had this verdict; untouched without one."""
    if last is None:
        return Row(number, f'{number:02}_some', f'title {number}')
    return Row(number, f'{number:02}_some', f'title {number}', best=last.earned, points=last.points, attempts=attempts,
               passed_at=at(minutes) if last.passed else None, last_at=at(minutes), last=last, **more)


def results(name: str, *rows: Row, id: str = '', written: int = 0) -> Results:
    return Results(name, id or f'{zlib.crc32(name.encode()):08x}', at(written), {'system': 'Linux'}, list(rows))
