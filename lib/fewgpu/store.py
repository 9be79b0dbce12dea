"""Where state lives that is on no device: lists of tensors under names, in memory or on disk.

    store = DiskStore('states')
    store.write('layer 3', [weight, bias])       # the old version stays until the new one is whole
    weight, bias = store.read('layer 3')
    piece, = store.read('flat', slice(0, 500))   # a rank's own part

A write to disk goes to a file of its own, reaches the disk, and then takes the name in one operation:
whatever happens, under the name is the old list or the new one (see fewgpu.tensorfile for the bytes).
"""

import contextlib
import errno
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fewgpu.link import Link
from fewgpu.tensorfile import DTYPES, Damaged, dump, header_of, load

try:
    import fcntl
except ImportError:   # Windows: nobody notices there that two processes use one folder
    fcntl = None

_NAME = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_ .,@-]*')


class StoreError(RuntimeError):
    """State cannot be written, or not read as it was written."""


class Store:
    """What both kinds share. With a `bandwidth` (bytes a second) a read or write takes at least its time,
    as on a disk of that speed; reads and writes do not hold each other up, reads one another do."""

    def __init__(self, bandwidth: float = math.inf) -> None:
        self._link, self._lock = Link(0.0, bandwidth), threading.Lock()
        self.bytes_read, self.bytes_written = 0, 0

    def write(self, name: str, tensors: Sequence[torch.Tensor], about: Any = None) -> None:
        """Keep the tensors (copies, on the host) under the name, in place of what is there, and with
        them `about`, whatever JSON can hold. Raises StoreError if they cannot be kept: then what was
        there before still is."""
        _verify(name)
        if unknown := [tensor for tensor in tensors
                       if tensor.layout is not torch.strided or str(tensor.dtype) not in DTYPES]:
            raise TypeError(f'a store keeps dense tensors of numbers, and {name} has one of '
                            f'{unknown[0].dtype}, {unknown[0].layout}: convert it first')
        size = sum(tensor.nbytes for tensor in tensors)
        with self._taking(size, 'write'):
            self._write(name, [_plain(tensor) for tensor in tensors], about)
        self.bytes_written += size

    def read(self, name: str, part: slice | None = None) -> list[torch.Tensor]:
        """Copies of the tensors. With a `part` of each only these elements, flat.

        Raises StoreError if there is nothing under the name, or not what was written."""
        _verify(name)
        start = time.perf_counter()
        tensors = self._read(name, part)
        size = sum(tensor.nbytes for tensor in tensors)
        self._wait(size, start, 'read')
        self.bytes_read += size
        return tensors

    @contextlib.contextmanager
    def _taking(self, size: int, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._wait(size, start, what)

    def _wait(self, size: int, start: float, what: str) -> None:
        with self._lock:
            end = self._link.arrival(size, start, what == 'write')
        time.sleep(max(0.0, end - time.perf_counter()))

    def __enter__(self) -> 'Store':
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


class HostStore(Store):
    """In the memory of the host."""

    def __init__(self, bandwidth: float = math.inf) -> None:
        super().__init__(bandwidth)
        self._held: dict[str, tuple[list[torch.Tensor], str]] = {}

    def _write(self, name: str, tensors: list[torch.Tensor], about: Any) -> None:
        self._held[name] = [tensor.clone() for tensor in tensors], json.dumps(about)

    def _read(self, name: str, part: slice | None) -> list[torch.Tensor]:
        if name not in self._held:
            raise StoreError(_missing(name, self.names(), 'the memory of the host'))
        return [tensor.clone() if part is None else tensor.flatten()[part].clone()
                for tensor in self._held[name][0]]

    def about(self, name: str) -> Any:
        """What was written beside the tensors."""
        if name not in self._held:
            raise StoreError(_missing(name, self.names(), 'the memory of the host'))
        return json.loads(self._held[name][1])

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def names(self) -> list[str]:
        return sorted(self._held)

    def remove(self, name: str) -> None:
        self._held.pop(name, None)

    def close(self) -> None:
        """Let go of everything."""
        self._held.clear()


class DiskStore(Store):
    """In a folder, which one process uses at a time; without a folder, in a temporary one that goes
    when the store is closed. Raises StoreError if the folder cannot be used."""

    def __init__(self, folder: str | os.PathLike | None = None, bandwidth: float = math.inf) -> None:
        super().__init__(bandwidth)
        self.folder = Path(tempfile.mkdtemp(prefix='fewgpu-store-') if folder is None else folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._taken = open(self.folder / 'lock', 'ab')
        except OSError as error:
            raise StoreError(f'cannot write to {self.folder} ({error.strerror}): choose a folder of your '
                             f'own for the store') from error
        self._closing = weakref.finalize(self, _leave, self._taken, self.folder, folder is None)
        try:
            if fcntl:
                fcntl.flock(self._taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._taken.close()
            self._closing.detach()
            raise StoreError(f'{self.folder} is in use by another store: close that one, or choose another '
                             f'folder (every rank has its own)') from error
        for leftover in self.folder.glob('*.new'):   # of a process that was killed
            leftover.unlink(missing_ok=True)

    def _write(self, name: str, tensors: list[torch.Tensor], about: Any) -> None:
        path = self._path(name)
        new = path.with_suffix('.new')
        try:
            with open(new, 'wb') as file:
                self._dump(file, tensors, about)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
            self._reach_the_disk()
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise StoreError(
                f'{name} was not written to {self.folder} ({error.strerror or error}); what was there '
                f'before still is: ' + ('make room, or choose another disk' if full else
                                        'see that the folder can be written to')) from error

    def _dump(self, file: BinaryIO, tensors: list[torch.Tensor], about: Any) -> None:
        dump(file, tensors, about)

    def _reach_the_disk(self) -> None:
        """The folder's list of names, too."""
        if os.name == 'posix':
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _read(self, name: str, part: slice | None) -> list[torch.Tensor]:
        with self._opened(name) as (file, header):
            return load(file, header, part)

    def about(self, name: str) -> Any:
        """What was written beside the tensors."""
        with self._opened(name) as (_, header):
            return header['about']

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[tuple[BinaryIO, dict]]:
        """The file, where its tensors begin, and its header."""
        path = self._path(name)
        if not path.exists():
            raise StoreError(_missing(name, self.names(), self.folder))
        try:
            with open(path, 'rb') as file:
                yield file, header_of(file)
        except (OSError, Damaged) as error:
            raise StoreError(f'{path} cannot be read ({error}): put back a copy of the folder, or begin anew '
                             f'in an empty one') from error

    def __contains__(self, name: str) -> bool:
        return self._path(name).exists()

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob('*.tensors'))

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let others use the folder; a temporary one goes."""
        self._closing()

    def _path(self, name: str) -> Path:
        return self.folder / f'{name}.tensors'


def _leave(taken: BinaryIO, folder: Path, temporary: bool) -> None:
    taken.close()
    if temporary:
        shutil.rmtree(folder, ignore_errors=True)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _verify(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f'{name!r} is not a name for a file everywhere: use letters, digits, blanks and '
                         f'. , _ @ -')


def _missing(name: str, names: list[str], where: Any) -> str:
    there = ', '.join(names[:8]) + (', ...' if len(names) > 8 else '')
    return f'there is no {name} in {where}, but {there or "nothing"}: is it the right folder?'
