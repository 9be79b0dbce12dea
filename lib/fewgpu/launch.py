"""Start ranks: processes of this machine that work together, from a script or a notebook cell.

    def hello(greeting):
        return f'{greeting} from rank {torch.distributed.get_rank()}'

    launch(hello, ranks=2, args=('hello',))   # ['hello from rank 0', 'hello from rank 1']

Every rank is a new Python process, never a fork, that runs `fewgpu.launched`. They find each other
through a file, so no port is needed.
"""

import contextlib
import linecache
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fewgpu.launched import dumps
from fewgpu.limit import verify_time_limit
from fewgpu.own_files import read_own, write_own

_LOOPBACK = {'linux': 'lo', 'darwin': 'lo0'}.get(sys.platform)
_LOOK = 0.05        # seconds between two looks at the processes
_LAST_WORDS = 0.5   # seconds after a failure in which others may tell that they failed first
_NOTICE = 5.0       # seconds, at most, in which others may tell what they notice of a rank that died
_EXIT = 5.0         # seconds that a process may take to end once its function has returned


class RankDied(RuntimeError):
    """A rank ended before its function returned."""


def launch(fn: Callable[..., Any], ranks: int = 2, *, args: Sequence[Any] = (),
           time_limit: float | None = None) -> list[Any]:
    """Call `fn(*args)` in `ranks` processes, and return what each returned, in order of the ranks.

    `fn`, its arguments and its results may be whatever cloudpickle can pickle: functions of a
    notebook cell, closures, tensors. In each process torch.distributed is initialised (gloo, and
    NCCL for GPU tensors if there is a GPU a rank, which is then the current one), `RANK`,
    `WORLD_SIZE` and `LOCAL_RANK` are set, and without GPUs an operation uses one thread. What a
    rank prints appears here, each line with its rank: `[rank 1] ...`.

    No process stays behind: when a rank fails the others are ended, and all end with this process,
    whatever ends it. `time_limit` (seconds) bounds the whole call.

    Raises the exception of the rank that failed first, with a note that names the rank and shows
    its traceback; RankDied if a rank died without one; TimeoutError after the time limit, when each
    rank has printed where it is; TypeError or ValueError, before any start, for wrong arguments.
    """
    if not callable(fn):
        raise TypeError(f'launch needs a function, which every rank is to call, not {fn!r}')
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f'launch needs at least one rank, not {ranks!r}')
    if time_limit is not None:
        verify_time_limit(time_limit)
    call = _pickled(fn, tuple(args))
    with tempfile.TemporaryDirectory(prefix='fewgpu-', ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_own(folder / 'call', call)
        with _started(ranks, folder) as (processes, lines):
            failed = _first_failure(processes, lines, time_limit)
        if failed is None:
            return [pickle.loads(read_own(process.result)) for process in processes]
        error = failed.error()
        for process in processes:
            if isinstance(error, RankDied) and (noticed := process.noticed()):
                error.add_note(f'rank {process.rank} noticed: {noticed}')
        if gone := [process.rank for process in processes if process.result.exists()]:
            error.add_note(f'returned before, and so were gone: rank {", ".join(map(str, gone))}')
        raise error


def _pickled(fn: Callable[..., Any], args: tuple) -> bytes:
    # The lines of a notebook cell are in no file that a rank could read to show its traceback.
    cells = {name: entry for name, entry in linecache.cache.items() if not os.path.exists(name)}
    try:
        return dumps((cells, fn, args))
    except Exception as error:
        raise TypeError(f'{_culprit(fn, args)} cannot be sent to another process ({error}): make it '
                        f'inside the function that every rank calls') from None


def _culprit(fn: Callable[..., Any], args: tuple) -> str:
    for place, arg in enumerate(args):
        try:
            dumps(arg)
        except Exception:
            return f'args[{place}], a {type(arg).__name__},'
    return f'the function {getattr(fn, "__name__", fn)} with what it refers to'


@contextlib.contextmanager
def _started(ranks: int, folder: Path) -> 'Iterator[tuple[list[_Process], queue.Queue]]':
    """The processes, and the lines that they print. They end with the block, whatever happens."""
    processes: list[_Process] = []
    # Not a SimpleQueue: its timed get waits for ever where the time is up before the wait begins (CPython 3.11).
    lines: queue.Queue[str] = queue.Queue()
    try:
        for rank in range(ranks):
            processes.append(_Process(rank, ranks, folder, lines))
        yield processes, lines
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.close()
        while not lines.empty():
            sys.stdout.write(lines.get())


def _first_failure(processes: Sequence['_Process'], lines: queue.Queue,
                   time_limit: float | None) -> '_Process | None':
    """Show what the ranks print until all have returned (None), or one has failed."""
    end = None if time_limit is None else time.monotonic() + time_limit
    while not all(process.has_returned() for process in processes):
        _show(lines, _LOOK)
        if any(process.has_failed() for process in processes):
            _show(lines, _LAST_WORDS)
            first = min((p for p in processes if p.has_failed()), key=_Process.failed_how)
            until = time.monotonic() + _NOTICE * first.died_without_a_word()
            while time.monotonic() < until and not all(p.has_returned() or p.has_failed() for p in processes):
                _show(lines, _LOOK)
            return first
        if end is not None and time.monotonic() > end:
            running = [process for process in processes if not process.has_returned()]
            for process in running:
                process.show_stack()
            _show(lines, _LAST_WORDS)
            names = ', '.join(str(process.rank) for process in running)
            raise TimeoutError(f'after {time_limit:g} s, not yet returned: rank {names}')
    return None


def _show(lines: queue.Queue, seconds: float) -> None:
    """Print what comes in the next seconds. (In the thread that called `launch`: a notebook shows
    it under its cell.)"""
    end = time.monotonic() + seconds
    with contextlib.suppress(queue.Empty):
        while (left := end - time.monotonic()) > 0:
            sys.stdout.write(lines.get(timeout=left))
    sys.stdout.flush()


class _Process:
    """The process of a rank, seen from outside. It leaves its result, or its error, in a file."""

    def __init__(self, rank: int, ranks: int, folder: Path, lines: queue.Queue) -> None:
        self.rank, self._name = rank, f'rank {rank} of {ranks}'
        self.result, self._error = folder / f'result-{rank}', folder / f'error-{rank}'
        self._returned: float | None = None   # since when the result is there
        environment = {
            **os.environ, 'RANK': str(rank), 'WORLD_SIZE': str(ranks), 'LOCAL_RANK': str(rank),
            'PYTHONPATH': os.pathsep.join(str(entry) or os.getcwd() for entry in sys.path),
            'PYTHONUNBUFFERED': '1', 'PYTHONIOENCODING': 'utf-8'}
        if _LOOPBACK:   # gloo would look up the name of the host, which many a laptop cannot
            environment.setdefault('GLOO_SOCKET_IFNAME', _LOOPBACK)
        # A process group of its own: Ctrl-C is ours to handle, and its children end with it.
        self._process = subprocess.Popen(
            [sys.executable, '-P', '-m', 'fewgpu.launched', str(folder)], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding='utf-8', errors='replace', process_group=0)
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def has_returned(self) -> bool:
        """Whether the result is there and the process has ended, or takes too long to."""
        if not self.result.exists():
            return False
        self._returned = self._returned or time.monotonic()
        return self._process.poll() is not None or time.monotonic() > self._returned + _EXIT

    def has_failed(self) -> bool:
        ended = self._process.poll() is not None   # first this: a result may come just before
        return self._error.exists() or (ended and not self.result.exists())

    def died_without_a_word(self) -> bool:
        return not self._error.exists()

    def failed_when(self) -> float:
        """For comparison. Who died without a word was first: it made the others fail."""
        return self._error.stat().st_mtime if self._error.exists() else 0.0

    def failed_how(self) -> tuple[bool, float]:
        """For comparison: an error that tells of another rank's comes last, then the time counts."""
        other = self._error.exists() and getattr(self.error(), 'is_of_another_rank', False)
        return other, self.failed_when()

    def error(self) -> BaseException:
        """Why it failed, once it has ended."""
        if self._error.exists():
            error, trace = pickle.loads(read_own(self._error))
            if isinstance(error, SystemExit):   # which would end this process, too
                error = RankDied(f'{self._name} called sys.exit({error.code!r}) before its function '
                                 f'returned')
            error.add_note(f'raised in {self._name}:\n{trace}')
            return error
        code = self._process.returncode
        if code >= 0:
            return RankDied(f'{self._name} ended with exit code {code} before its function returned')
        hint = ' (the system does that when memory runs out)' if code == -signal.SIGKILL else ''
        return RankDied(f'{self._name} was killed by {signal.Signals(-code).name}{hint}')

    def noticed(self) -> str:
        """What it says of another rank that failed; '' if it says nothing."""
        error = self.error() if self._error.exists() else None
        return str(error) if getattr(error, 'is_of_another_rank', False) else ''

    def show_stack(self) -> None:
        """Let it print where it is (see `fewgpu.launched`)."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """With the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._process.wait()
        self._process.stdin.close()
        self._reader.join(timeout=1.0)

    def _read(self, lines: queue.Queue) -> None:
        with self._process.stdout as stdout:
            for line in stdout:
                lines.put(f'[rank {self.rank}] {line.rstrip()}\n')


class _Module(types.ModuleType):
    """`fewgpu.launch` is the function, but this module once anybody has imported something from it:
    either can be called."""

    __call__ = staticmethod(launch)


sys.modules[__name__].__class__ = _Module
