"""Processes that have imported torch before they begin: copies of one that did, used as those of `subprocess` are.

To start Python with torch is half of what it takes to grade a file, and the bank has more than a thousand.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fewgpu.workshop.grading import child

CAN_FORK = 'forkserver' in multiprocessing.get_all_start_methods()   # not on Windows
_HOME = multiprocessing.get_context('forkserver' if CAN_FORK else None)
if CAN_FORK:
    # Also what most graders import before they begin: half a second each time.
    _HOME.set_forkserver_preload([child.__name__, 'fewgpu.workshop.blocks'])
_ONE_AT_A_TIME = threading.Lock()   # starting one asks how the others are, and only one may read how a process ended


class Forked:
    """In place of `subprocess.Popen([python, '-P', '-m', child, NAME, FILE, SEED, FOLDER, PARENT], ...)`.

    With a session, a folder, an environment and an output of its own, as there. It ends with the process that copies
    itself, which ends with this one.
    """

    def __init__(self, command: list[str], *, cwd: Path, env: dict[str, str], **_: Any) -> None:
        reading, writing = multiprocessing.Pipe(duplex=False)
        arguments = command[command.index(child.__name__) + 1:-1]
        self._process = _HOME.Process(target=_run, args=(arguments, str(cwd), env, writing))
        with _ONE_AT_A_TIME:
            self._process.start()
        writing.close()
        self.stdout = os.fdopen(os.dup(reading.fileno()), 'rb')
        reading.close()
        self.pid, self.returncode = self._process.pid, None

    def poll(self) -> int | None:
        with _ONE_AT_A_TIME:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float = float('inf')) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired('a forked process', timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(arguments: list[str], folder: str, environment: dict[str, str], output: Connection) -> None:
    """What the new process does: it makes itself one that was started by the command, as far as that is seen."""
    os.setsid()
    os.chdir(folder)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout = open(1, 'w', encoding='utf-8', closefd=False, buffering=1)
    sys.stderr = open(2, 'w', encoding='utf-8', closefd=False, buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    pythons = tuple({sys.prefix, sys.base_prefix})
    sys.path[:] = [*environment['PYTHONPATH'].split(os.pathsep), *(path for path in sys.path if path.startswith(pythons))]
    child.main(*arguments, str(os.getppid()))


quick_popen = Forked if CAN_FORK else subprocess.Popen
