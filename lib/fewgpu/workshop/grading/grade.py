"""Grade an exercise: its file runs in a process with limits, and whatever it does there, a verdict comes out."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import fewgpu
from fewgpu.workshop.exercise import Exercise, real
from fewgpu.workshop.grading.channel import Forged, Reader, make_key, open_for_reading
from fewgpu.workshop.grading.known import KNOWN
from fewgpu.workshop.grading.patience import Patience
from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, Line, Outcome, Verdict, outcome

START = 60.0                       # seconds that Python and torch may compute to start
GRACE = 2.0                        # seconds that a process may take to end
LOAD = 10.0                       # seconds that the learner's file may take to load
MOST_PRINTED = 10 * 2**20         # bytes; more ends the process
MOST_ROUNDS = 20   # of looking for processes that start others
OF_RUN = 'FEWGPU_GRADING'   # in the environment of a process that grades, and of those that it starts: its folder
KEPT_FIRST, KEPT_LAST = 2000, 1000
FILE = 'file', 'the file can be loaded', 0, LOAD
_FRAME = re.compile(r'File "(.+)", line (\d+) in ')

OnOutcome = Callable[[Outcome], None]


class GraderError(RuntimeError):
    """The grader itself could not be started."""


def grade(exercise: Exercise, file: Path | None = None, *, seed: int | None = None,
          on_outcome: OnOutcome | None = None, popen: Callable[..., subprocess.Popen] = subprocess.Popen) -> Verdict:
    """The verdict on a file (default: the exercise's own). `on_outcome` hears of each check as soon as it has ended;
    `popen` starts the process.

    Raises OSError, with the remedy, if there is no such file or it cannot be read, ValueError for a seed that is none,
    and GraderError if the kit itself fails. KeyboardInterrupt ends the process that grades, too.
    """
    file = _readable(file, exercise)
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f'a seed is a whole number from 0 to 2**63 - 1, not {seed!r}')
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix='grading-', ignore_cleanup_errors=True) as folder:
        with _Run(exercise, file, seed, Path(folder), on_outcome) as run:
            run.to_end(popen)
            outcomes = run.outcomes()
    return Verdict(exercise.number, exercise.name, str(file), seed, outcomes, run.printed.text(),
                   time.monotonic() - started)


def _readable(file: Path | None, exercise: Exercise) -> Path:
    """The file that is meant, or OSError with a sentence about it."""
    path = real(file or exercise.file)
    remedy = '' if file else f': `./workshop.py reset {exercise.number:02}` brings the exercise back'
    if not path.exists():
        raise FileNotFoundError(f'there is no file {path}{remedy}')
    if not path.is_file():
        raise OSError(f'{path} is no file that can be read, but a folder or a device: move it away{remedy}')
    if not os.access(path, os.R_OK):
        raise PermissionError(f'{path} may not be read by you: give yourself the right to')
    return path


class _Run:
    """One run of the child process, watched."""

    def __init__(self, exercise: Exercise, file: Path, seed: int, folder: Path, on_outcome: OnOutcome | None) -> None:
        self._file, self._folder, self._on_outcome = file, folder, on_outcome
        self._checks: dict[str, tuple[str, str, int, float]] = {}   # by id: id, title, points, seconds allowed
        self._command = [sys.executable, '-P', '-m', 'fewgpu.workshop.grading.child', exercise.name, str(file),
                         str(seed), str(folder), str(os.getpid())]
        self._done: dict[str, Outcome] = {}
        self._current, self._ended, self._fault = '', False, ''
        self._killed, self._signal = '', 0   # why we have ended the process; what has ended it otherwise
        self.printed = Printed()
        # Opened before anything runs: whatever becomes of their names, it is these that are read.
        (folder / 'stuck').touch()
        self._outcomes, self._stuck = open_for_reading(folder / 'outcomes'), open(folder / 'stuck', 'rb')
        self._reader = Reader(self._outcomes, make_key(folder))

    def __enter__(self) -> '_Run':
        return self

    def __exit__(self, *_: object) -> None:
        self._outcomes.close()
        self._stuck.close()

    def to_end(self, popen: Callable[..., subprocess.Popen]) -> None:
        """Start the process and wait until it has ended, or until it has to be ended."""
        process = popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=_environment(self._folder), cwd=self._file.parent, start_new_session=True)
        reader = threading.Thread(target=self.printed.read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            patience = Patience(process.pid)
            while process.poll() is None and not self._killed:
                if self._read():
                    patience.begin()
                self._killed = self._killed or self._reason_to_kill(patience)
                time.sleep(0.02)
            if self._killed:
                _ask_where_it_is(process)
        finally:
            _end(process, self._folder)
            reader.join(timeout=GRACE)
        while self._killed != 'tampers' and self._read():
            pass
        if self._fault or not self._current:
            raise GraderError(f'the grader failed, and not your file:\n{self._fault or self.printed.text()}')
        self._signal = -process.returncode

    def _read(self) -> bool:
        """Note what is new; False if nothing is."""
        try:
            lines = self._reader.lines()
        except Forged:
            lines, self._killed = [], 'tampers'
        self._note(lines)
        return bool(lines)

    def _note(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if 'checks' in line:
                self._checks = {'file': FILE, **{each[0]: tuple(each) for each in line['checks']}}
            elif 'starts' in line:
                self._current = line['starts']
            elif 'ends' in line:
                self._ended = True
            elif 'fault' in line:
                self._fault = line['fault']
            else:
                done = outcome(line)
                self._done[done.id] = done
                if self._on_outcome:
                    self._on_outcome(done)

    def _reason_to_kill(self, patience: Patience) -> str:
        if patience.is_over(self._checks[self._current][3] if self._current else START):
            return 'too-slow'
        return 'prints-too-much' if self.printed.size > MOST_PRINTED else ''

    def outcomes(self) -> list[Outcome]:
        """Of all checks; those that did not run are blocked."""
        if self._killed == 'tampers' or not self._ended and self._current not in self._done:
            self._done[self._current] = self._unfinished()
        blocked = [Outcome(*check[:3], BLOCKED) for check in self._checks.values() if check[0] != 'file']
        file = [self._done['file']] if 'file' in self._done else []
        return file + [self._done.get(check.id, check) for check in blocked]

    def _unfinished(self) -> Outcome:
        """The check during which the process ended."""
        *check, allowed = self._checks[self._current]
        stuck = self._stuck.read(MOST_PRINTED).decode(errors='replace')
        why = self._killed or ('crashed' if 'Fatal' in stuck else 'killed' if self._signal > 0 else 'exits')
        message = f'{KNOWN[why][:1].upper()}{KNOWN[why][1:]}'
        message += f': it was ended after {allowed:g} seconds.' if why == 'too-slow' else '.'
        return Outcome(*check, FAILED, misconception=why, message=message, lines=self._stuck_lines(stuck))

    def _stuck_lines(self, stuck: str) -> list[Line]:
        """Where the first thread that runs the learner's file was."""
        for thread in stuck.split('\n\n'):
            numbers = [int(number) for file, number in _FRAME.findall(thread) if file == str(self._file)]
            if numbers:
                source = self._file.read_text(encoding='utf-8', errors='replace').splitlines()
                return [Line(number, source[number - 1]) for number in reversed(numbers[:3]) if number <= len(source)]
        return []


class Printed:
    """What a process prints: read as it comes, and kept from both ends."""

    def __init__(self) -> None:
        self.size = 0
        self._first, self._last = b'', b''

    def read(self, stream: BinaryIO) -> None:
        while chunk := stream.read1(2**16):
            self.size += len(chunk)
            room = KEPT_FIRST - len(self._first)
            self._first, rest = self._first + chunk[:max(room, 0)], chunk[max(room, 0):]
            self._last = (self._last + rest)[-KEPT_LAST:]

    def text(self) -> str:
        left_out = self.size - len(self._first) - len(self._last)
        between = f'\n... ({left_out:,} characters are left out) ...\n'.encode() if left_out else b''
        return (self._first + between + self._last).decode(errors='replace')


def _environment(folder: Path) -> dict[str, str]:
    """The kit that runs is the one that grades; devices are virtual ones, so that no verdict depends on the machine."""
    here = str(Path(fewgpu.__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get('PYTHONPATH')]))
    return {**os.environ, 'PYTHONPATH': path, 'PYTHONUNBUFFERED': '1', 'PYTHONIOENCODING': 'utf-8',
            'PYTHONDONTWRITEBYTECODE': '1', 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1', 'MPLBACKEND': 'agg',
            OF_RUN: str(folder)}


def _ask_where_it_is(process: subprocess.Popen) -> None:
    """It writes the lines where its threads are, from C, which no lock of Python can keep from it, and ends."""
    if os.name != 'nt':
        process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def _end(process: subprocess.Popen, folder: Path) -> None:
    """End it and all that it has started; on Linux also what has left its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, 'killpg'):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    mark = f'{OF_RUN}={folder}\0'.encode()
    for _ in range(MOST_ROUNDS if sys.platform == 'linux' else 0):
        found = [int(each.parent.name) for each in Path('/proc').glob('[0-9]*/environ') if mark in _content(each)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            break


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:   # it has ended, or is not ours
        return b''
