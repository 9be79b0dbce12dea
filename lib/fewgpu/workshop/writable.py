"""Files of the commands: can they be written? Asked before minutes of work; and written whole, or not at all."""

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import typer


def make_writable(option: str, files: Sequence[Path], folders: Sequence[Path] = ()) -> None:
    """Make `folders`.

    Raises typer.BadParameter, a sentence that names `option`, if one of them cannot be made, or if one of the files, or
    a new file in one of the folders, could not be written later. No file is made or changed.
    """
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise _unwritable(folder, option, error) from None
    for path in files:
        with suppress(_Nothing), written(path, option):
            if path.exists():
                path.open('ab').close()
            raise _Nothing


class _Nothing(Exception):
    """Nothing shall be written."""


@contextmanager
def written(path: Path, option: str) -> Iterator[BinaryIO]:
    """What is written to it takes the place of `path` at the end, and is gone if that is never reached.

    Raises typer.BadParameter, a sentence, if it cannot be.
    """
    part = path.parent / f'.{path.name}-{os.getpid()}'   # with_name would refuse '.' and '/'
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, 'it is a folder')
        with part.open('wb') as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        raise _unwritable(path, option, error) from None
    finally:
        with suppress(OSError):   # a folder in which nothing can be written has no such file
            part.unlink(missing_ok=True)


def _unwritable(path: Path, option: str, error: OSError) -> typer.BadParameter:
    return typer.BadParameter(f'cannot write to {option} {path} ({error.strerror}); name another place')
