"""A lock between processes that ends with the process that holds it, however it ends."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PATIENCE = 10.0   # seconds; who holds it longer has been stopped (by Ctrl-Z, say) and is not waited for
_HELD = errno.EAGAIN, errno.EACCES, errno.EDEADLK


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Inside, nobody else is. Where the file system knows no locks there is none. Raises OSError if it is read-only."""
    with file.open('ab') as held:
        given_up = time.monotonic() + PATIENCE
        while not _lock(held) and time.monotonic() < given_up:
            time.sleep(0.01)
        yield   # closing the file frees the lock


def _lock(file: BinaryIO) -> bool:
    try:
        if os.name == 'nt':
            import msvcrt
            file.seek(0)   # it locks from where the file stands, and that is to be one place for all
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True
