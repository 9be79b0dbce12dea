"""Processes that do not get away: whoever tends them sees all that come from them, and ends all.

A process that its parent has left goes to the nearest ancestor that said it is a "subreaper"
(prctl(2)); so what a job leaves in the background stays below the tender of its node. And a process that asked
for it gets a signal when its parent dies, however it died.
"""

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

SUBREAPER, SIGNAL_AT_PARENTS_DEATH = 36, 1   # linux/prctl.h
OWN_HOST_NAME = 0x04000000                   # linux/sched.h: CLONE_NEWUTS


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), 'prctl')


def be_localhost() -> None:
    """Be called localhost from here on, with all that we start: srun listens where the name of its host leads."""
    with suppress(OSError):   # a container may forbid it, and then its name stays
        if ctypes.CDLL(None).unshare(OWN_HOST_NAME) == 0:
            socket.sethostname('localhost')


def daemon(command: list[str], log: str, environment: dict[str, str]) -> subprocess.Popen:
    """Start a daemon that dies with us; what it says goes to the end of `log`."""
    parent = os.getpid()

    def dies_with_us() -> None:
        prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    with open(log, 'ab') as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
                                preexec_fn=dies_with_us, start_new_session=True)


def descendants(ancestor: int) -> set[int]:
    """All processes below that one which have not ended."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir('/proc'):
        if entry.isdigit():
            try:
                with open(f'/proc/{entry}/stat', 'rb') as file:
                    state, parent = file.read().rpartition(b')')[2].split()[:2]
            except OSError:
                continue   # it has ended
            if state != b'Z':
                children.setdefault(int(parent), []).append(int(entry))
    found, new = set(), [ancestor]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found.update(new)
    return found


def end_all() -> None:
    """End all that is below us, as a power cut would, and wait until it is gone."""
    stopped: set[int] = set()
    while new := descendants(os.getpid()) - stopped:   # first nobody moves: a daemon would tell others of a death
        _send(new, signal.SIGSTOP)
        stopped |= new
    while left := descendants(os.getpid()):
        _send(left, signal.SIGKILL)
        reap()
        time.sleep(0.01)
    with suppress(ChildProcessError):
        while True:
            os.wait()   # what has ended leaves the list of processes


def _send(processes: set[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def reap() -> set[int]:
    """Take note of children that have ended; their process ids."""
    ended = set()
    with suppress(ChildProcessError):
        while (process := os.waitpid(-1, os.WNOHANG)[0]):
            ended.add(process)
    return ended


def tend(start: Callable[[], subprocess.Popen]) -> int:
    """A tender: a process of its own that starts a daemon and lasts as long as anything that came from it.

    SIGTERM, or the death of its parent, makes it end all of that. Returns its process id.
    """
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})   # until there is somebody to handle it
    tender = os.fork()
    if tender:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return tender
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: (end_all(), os._exit(0)))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        prctl(SUBREAPER, 1)
        prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGTERM)
        if os.getppid() == parent:
            start()
            while True:
                os.wait()
    finally:   # no children are left, or it could not start
        os._exit(0)
