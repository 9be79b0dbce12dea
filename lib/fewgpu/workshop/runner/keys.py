"""Single keys of a terminal, read as they are pressed. Where the input is no terminal, there are none."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[bool]:
    """Inside, a thread calls `pressed` with every key. Gives whether there is a terminal to read from.

    Ctrl-C works as ever, and the terminal is put back as it was.
    """
    if not _is_ours():
        yield False
        return
    over = threading.Event()
    read = _read_windows if os.name == 'nt' else _read_posix
    with contextlib.nullcontext() if os.name == 'nt' else _unbuffered():
        reader = threading.Thread(target=read, args=(pressed, over), daemon=True)
        reader.start()
        try:
            yield True
        finally:
            over.set()
            reader.join(timeout=1)


def _is_ours() -> bool:
    """Is the input a terminal, and are we its foreground? (Who reads it in the background is stopped.)"""
    try:
        if not sys.stdin.isatty():
            return False
        return os.name == 'nt' or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


@contextlib.contextmanager
def _unbuffered() -> Iterator[None]:
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _read_posix(pressed: Callable[[str], None], over: threading.Event) -> None:
    import select

    while not over.is_set():
        if select.select([sys.stdin], [], [], 0.1)[0]:
            key = os.read(sys.stdin.fileno(), 1)
            if not key:   # the terminal is gone
                return
            pressed(key.decode(errors='replace'))


def _read_windows(pressed: Callable[[str], None], over: threading.Event) -> None:
    import msvcrt

    while not over.is_set():
        if msvcrt.kbhit():
            pressed(msvcrt.getwch())
        else:
            time.sleep(0.1)
