"""Run a script as a process of its own, its output going where ours goes, and hear why it failed."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import fewgpu

_TRACEBACK = 'Traceback (most recent call last)'


def run_to_end(command: list[str]) -> tuple[int, str]:
    """The exit code, and what the process complained about at its end.

    KeyboardInterrupt ends the process, too, before it is raised again.
    """
    here = str(Path(fewgpu.__file__).parents[1])   # the fewgpu that runs is the one to be compared
    path = os.pathsep.join(filter(None, [here, os.environ.get('PYTHONPATH')]))
    environment = {**os.environ, 'PYTHONPATH': path, 'PYTHONUNBUFFERED': '1'}
    # stdout is inherited: in a terminal the script draws its progress bar by itself.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True,
                               encoding='utf-8', errors='replace')
    with _ending(process), _passing_on(process.stderr) as lines:
        process.wait()
    return process.returncode, _complaint(lines)


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
            lines.append(line.rstrip())
            (held.append if held or line.startswith(_TRACEBACK) else _to_stderr)(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield lines
    reader.join()
    _to_stderr(''.join(held))


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _complaint(lines: list[str]) -> str:
    """The sentence in a script's stderr that says why it ended: its last one, or the exception."""
    tracebacks = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if tracebacks:
        lines = [line for line in lines[tracebacks[-1] + 1:] if line and not line.startswith(' ')][:1]
    sentences = [line for line in lines if line and not line.startswith('(')]   # '(in stage 1 ...)'
    return sentences[-1] if sentences else ''
