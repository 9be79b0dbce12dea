"""`./workshop.py watch`: what is saved is checked, keys do what they say, and nothing stays behind."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from fewgpu.workshop.runner.progress import Progress
from tests.course import SLEEPS, SQUARE, Course

pytestmark = [pytest.mark.skipif(os.name == 'nt', reason='uses pseudo-terminals and POSIX signals'), pytest.mark.slow]
WAITING = r'waiting for exercises/0\d_\w+\.py to be saved'


class Screen:
    """What a process prints, as it comes."""

    def __init__(self, read) -> None:
        self._read, self._chunks = read, queue.SimpleQueue()
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while chunk := self._next():
            self._chunks.put(chunk)
        self._chunks.put('')

    def _next(self) -> str:
        try:
            return self._read().decode(errors='replace')
        except OSError:   # how a terminal of Linux ends
            return ''

    def until(self, pattern: str, seconds: float = 60) -> str:
        """All that comes until a pattern does."""
        text, end = '', time.monotonic() + seconds
        while not re.search(pattern, text):
            chunk = self._chunks.get(timeout=max(end - time.monotonic(), 0.01))
            assert chunk, f'it has ended, and before: {text}'
            text += chunk
        return text


@pytest.fixture
def course(tmp_path):
    return Course.make(tmp_path / 'clone')


@pytest.fixture
def without_terminal(course):
    process = subprocess.Popen(course.command('watch'), cwd=course.root, env=course.environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    yield process, Screen(lambda: os.read(process.stdout.fileno(), 65536))
    process.kill()
    process.wait()


@pytest.fixture
def in_terminal(course):
    import pty
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(course.root)
        os.execve(sys.executable, course.command('watch', '01'), {**course.environment, 'TERM': 'xterm'})
    yield pid, terminal, Screen(lambda: os.read(terminal, 65536))
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    os.close(terminal)


def exit_code(pid: int, seconds: float = 10) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    raise AssertionError('it has not ended')


def test_what_is_saved_is_checked_without_a_terminal_too(course, without_terminal):
    process, screen = without_terminal
    first = screen.until(WAITING)
    assert 'Checking exercises/01_double.py' in first and 'Ctrl-C ends' in first
    course.exercise(1).file.write_text(SQUARE)
    assert 'X times x is taken for twice x' in screen.until(WAITING)

    other = course.exercise(1).file.with_suffix('.new')   # as many editors save: beside, then renamed
    other.write_text(course.exercise(1).solution.read_text())
    other.replace(course.exercise(1).file)
    assert '10 of 10 points. Solved!' in screen.until(WAITING)

    course.solve(2)   # saving another one goes over to it
    assert 'Checking exercises/02_half.py' in screen.until(WAITING)
    assert [Progress.load(course.root).of(name).attempts for name in ('01_double', '02_half')] == [2, 1]

    course.exercise(2).file.unlink()
    course.exercise(2).file.write_text('def half(x:')
    assert 'Python cannot read the file' in screen.until(WAITING)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130


def test_what_is_saved_again_while_it_is_checked_is_checked_anew(course, without_terminal):
    _, screen = without_terminal
    screen.until(WAITING)
    course.exercise(1).file.write_text(f'import time\n{SQUARE}'.replace('return x', 'time.sleep(3); return x'))
    assert course.wait_for(True)
    course.solve(1)
    text = screen.until(WAITING)
    assert 'It was saved again' in text and '10 of 10 points. Solved!' in text


def test_keys_show_hints_go_on_and_quit(in_terminal):
    pid, terminal, screen = in_terminal
    assert 'h hint, n next, q quit' in screen.until(r'q quit')
    os.write(terminal, b'h')
    assert 'Think of x + x.' in screen.until(WAITING)
    os.write(terminal, b'h')
    assert '`double`, after STEP 1.' in screen.until(WAITING)
    os.write(terminal, b'n')
    assert 'Checking exercises/02_half.py' in screen.until(WAITING)
    os.write(terminal, b'q')
    assert exit_code(pid) == 0


@pytest.mark.parametrize('key, code', [(b'q', 0), (b'\x03', 130)])
def test_a_key_ends_it_while_a_check_runs(course, in_terminal, key, code):
    pid, terminal, screen = in_terminal
    screen.until('q quit')
    course.exercise(2).file.write_text(SLEEPS)   # it is not the one that is watched
    os.write(terminal, b'n')
    assert course.wait_for(True)
    os.write(terminal, key)
    assert exit_code(pid) == code
    assert course.wait_for(False) == []
