"""Files that processes of one person leave for each other in a private folder: nobody else's are read.

What `fewgpu.launch` sends is pickled, because functions have to travel, and to unpickle is to run. So that it is run
only if we have written it, the folder has to be ours alone, and the file ours.
"""

import os
import stat
from pathlib import Path


class NotOurs(PermissionError):
    """A folder or a file into which somebody else may have written."""


def verify_private(folder: Path) -> None:
    """Raises NotOurs unless the folder is this user's, and nobody else may look or write into it."""
    state = os.lstat(folder)
    if not stat.S_ISDIR(state.st_mode):
        raise NotOurs(f'{folder} is a link or no folder: nothing in it is run')
    if os.name == 'posix' and (state.st_uid != os.getuid() or state.st_mode & 0o077):
        raise NotOurs(f'{folder} is not of this user alone (owner {state.st_uid}, mode {state.st_mode & 0o777:o}): '
                      f'nothing in it is run; let TMPDIR name a folder on a disk that keeps owners and modes')


def write_own(file: Path, content: bytes) -> None:
    """Write a new file that only this user may read. Raises FileExistsError if there is one."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, 'O_BINARY', 0), 0o600), 'wb') as out:
        out.write(content)


def read_own(file: Path) -> bytes:
    """The content of a file that `write_own` wrote. Raises NotOurs for a link, and a file or folder of others."""
    verify_private(file.parent)
    with open(os.open(file, os.O_RDONLY | getattr(os, 'O_NOFOLLOW', 0) | getattr(os, 'O_NONBLOCK', 0)
                      | getattr(os, 'O_BINARY', 0)), 'rb') as content:
        state = os.fstat(content.fileno())
        if not stat.S_ISREG(state.st_mode) or os.name == 'posix' and (
                state.st_uid != os.getuid() or state.st_mode & 0o077):
            raise NotOurs(f'{file} is not a file of this user alone: nothing of it is run')
        return content.read()
