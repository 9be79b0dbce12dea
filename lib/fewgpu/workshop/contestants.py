"""Who takes part in `compare`, with which script and which arguments, and how each is run.

A contestant is one of the very scripts that learners read and edit, run as a process of its own
with --report: what is read and what is measured are the same program.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import fewgpu
from fewgpu.workshop import repository

PLAIN, GPIPE = 'exercises/mnist_pytorch.py', 'solutions/09_mnist_gpipe.py'


@dataclass(frozen=True)
class Settings:
    """The work that all contestants do. `batchsize` is that of the plain model and of the naive
    pipeline, `pipeline_batchsize` that of the pipelines with micro-batches; `threads` is how many
    cores the plain model has beyond its one device, 0 where devices are no cores."""

    arch: str
    devices: int
    batchsize: int
    pipeline_batchsize: int
    num_microbatches: int
    samples: int
    test_samples: int
    epochs: int
    seed: int
    threads: int


@dataclass(frozen=True)
class Contestant:
    """One way to train the model. `peer` says that it is not ours, so that it may be missing."""

    key: str
    name: str
    script: str
    arguments: tuple[str, ...]
    peer: bool = False


@dataclass(frozen=True)
class Result:
    """What became of a contestant: its report, or a sentence about why there is none."""

    contestant: Contestant
    report: dict[str, Any] | None = None
    failure: str = ''
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.contestant.name


def contestants(settings: Settings, balance: list[int]) -> list[Contestant]:
    """Everyone, in the order of the lesson; all pipelines have the same balance."""
    plain = _shared(settings, settings.batchsize)
    cut = ('--devices', str(settings.devices), '--balance', ','.join(map(str, balance)))
    naive = (*plain, *cut, '--num_microbatches', '1', '--checkpoint', 'never')
    piped = (*_shared(settings, settings.pipeline_batchsize), *cut,
             '--num_microbatches', str(settings.num_microbatches), '--checkpoint')
    one = 'one core' if settings.threads else 'one GPU'
    everyone = [Contestant('plain', f'plain, {one}', PLAIN, plain)]
    if settings.threads > 1:
        everyone.append(Contestant('plain-all', f'plain, {settings.threads} cores', PLAIN,
                                   (*plain, '--threads', str(settings.threads))))
    return [*everyone,
            Contestant('model-parallel', 'model parallel', GPIPE, naive),
            Contestant('gpipe-recompute', 'GPipe, recompute', GPIPE, (*piped, 'except_last')),
            Contestant('gpipe', 'GPipe', GPIPE, (*piped, 'never')),
            Contestant('torchgpipe', 'torchgpipe', GPIPE,
                       (*piped, 'except_last', '--engine', 'torchgpipe'), peer=True)]


def command_line(contestant: Contestant) -> str:
    """What a learner types, in the clone, to run this contestant alone."""
    return shlex.join(['python', contestant.script, *contestant.arguments])


def run(contestant: Contestant) -> Result:
    """Run the script to its end, its output going where ours goes, and read its report.

    KeyboardInterrupt ends the script, too, before it is raised again.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / 'report.json'
        command = [sys.executable, str(repository() / contestant.script), *contestant.arguments,
                   '--report', str(report)]
        code, complaint = _run(command)
        if code == 0 and report.exists():
            return Result(contestant, json.loads(report.read_text(encoding='utf-8')))
    why = complaint or (f'ended by signal {-code}' if code < 0 else f'ended with exit code {code}'
                        if code else 'ended without a report')
    return Result(contestant, failure=why)


def _shared(settings: Settings, batchsize: int) -> tuple[str, ...]:
    return ('--arch', settings.arch, '--batchsize', str(batchsize),
            '--samples', str(settings.samples), '--test_samples', str(settings.test_samples),
            '--epochs', str(settings.epochs), '--seed', str(settings.seed))


def _run(command: list[str]) -> tuple[int, str]:
    """The exit code, and the last line of what the process complained about."""
    here = str(Path(fewgpu.__file__).parents[1])   # the fewgpu that runs is the one to be compared
    path = os.pathsep.join(filter(None, [here, os.environ.get('PYTHONPATH')]))
    environment = {**os.environ, 'PYTHONPATH': path, 'PYTHONUNBUFFERED': '1'}
    # stdout is inherited: in a terminal the script draws its progress bar by itself.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True,
                               encoding='utf-8', errors='replace')
    with _ending(process), _passing_on(process.stderr) as complaints:
        process.wait()
    return process.returncode, complaints[-1] if complaints else ''


@contextlib.contextmanager
def _ending(process: subprocess.Popen) -> Iterator[None]:
    """Leave no process behind, whatever ends us."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _passing_on(stream: TextIO) -> Iterator[list[str]]:
    """Pass a script's stderr on, line by line, and remember the lines.

    Tracebacks wait for the end: Ctrl-C reaches the script as well as us, and what it then says
    about it helps nobody.
    """
    lines: list[str] = []
    held: list[str] = []

    def read() -> None:
        for line in stream:
            if line.strip():
                lines.append(line.strip())
            (held.append if held or line.startswith('Traceback (most recent') else _to_stderr)(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield lines
    reader.join()
    _to_stderr(''.join(held))


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
