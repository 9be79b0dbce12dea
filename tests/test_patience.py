"""A process is given up when it has computed for too long, or does nothing; never because others use the machine."""

import subprocess
import sys
import time

import pytest

from fewgpu.workshop.grading import patience
from fewgpu.workshop.grading.patience import Patience

needs_proc = pytest.mark.skipif(sys.platform != 'linux', reason='only Linux tells in /proc how much a process computes')


def given_up(code: str, allowed: float) -> bool:
    """Is a process that runs this code given up before it ends?"""
    with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()   # Python has started
        watched = Patience(process.pid)
        while process.poll() is None:
            if watched.is_over(allowed):
                process.kill()
                return True
            time.sleep(0.01)
    return False


@needs_proc
def test_process_that_computes_without_end_is_given_up() -> None:
    assert given_up('print(flush=True)\nwhile True: pass', 0.5)


@needs_proc
def test_process_that_waits_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, 'IDLE', 0.3)
    assert given_up('import time\nprint(flush=True)\ntime.sleep(1000)', 0.5)


@needs_proc
def test_process_that_others_keep_from_its_core_is_waited_for() -> None:
    """It needs 0.2 seconds of a core, and gets them in pieces, over a longer time than it may compute."""
    code = ('import time\nprint(flush=True)\n'
            'for _ in range(20):\n    until = time.process_time() + 0.01\n'
            '    while time.process_time() < until: pass\n    time.sleep(0.06)')
    assert not given_up(code, 0.6)


@needs_proc
def test_process_that_computes_now_and_then_without_end_is_given_up_by_the_clock_on_the_wall(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, 'AT_MOST', 2)
    monkeypatch.setattr(patience, 'BREATH', 0.0)
    assert given_up('import time\nprint(flush=True)\nwhile True: time.sleep(0.01)', 0.5)
