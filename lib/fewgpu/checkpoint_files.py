"""The files of a checkpoint: one a rank, and a manifest with their digests. What is written is on the disk."""

import hashlib
import json
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

_MANIFEST = 'manifest.json'


def part_of(rank: int) -> str:
    """The name of its file."""
    return f'rank-{rank}.pt'


def write_part(file: Path, state: Mapping[str, Any]) -> bytes:
    """Write a rank's part; the digest of the file. Raises OSError if it cannot be written, TypeError for what even
    this torch could not read again (b'', for one). Tensors are not read for it."""
    with open(file, 'wb') as out:
        noting = _Noting(out)
        try:
            torch.save(dict(state), noting)
        except RuntimeError:
            raise noting.error or sys.exc_info()[1] from None
        out.flush()
        os.fsync(out.fileno())
    try:
        torch.load(os.fspath(file), map_location='cpu', weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise TypeError('the state holds plain data that torch.load(weights_only=True) refuses, as an empty bytes '
                        'or a number of a thousand digits: leave it out') from error
    return _digest(file)


class _Noting:
    """A file, and what went wrong in it: torch.save tells of a full disk as of an inner fault of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.flush, self.error = file, file.flush, None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


def write_manifest(folder: Path, step: int, digests: Sequence[str]) -> None:
    """Say what the files of all ranks are: `digests`, in their order."""
    files = {part_of(rank): digest for rank, digest in enumerate(digests)}
    with open(folder / _MANIFEST, 'w', encoding='utf-8') as out:
        json.dump(_manifest(step, files), out)
        out.flush()
        os.fsync(out.fileno())
    sync(folder)


def read_parts(folder: Path, step: int) -> list[dict[str, Any]]:
    """What each rank saved. Raises ValueError, or what Python raises, if a file is not as it was written."""
    manifest = json.loads((folder / _MANIFEST).read_text(encoding='utf-8'))
    files = manifest['files']
    if not isinstance(files, dict) or [*files] != [part_of(rank) for rank in range(len(files))] or (
            manifest != _manifest(step, files)):
        raise ValueError(f'{_MANIFEST} is not as it was written (cut short, or altered)')
    parts = []
    for name, digest in files.items():
        if _digest(folder / name).hex() != digest:
            raise ValueError(f'{name} is not as it was written (cut short, or altered)')
        try:
            parts.append(torch.load(folder / name, map_location='cpu', weights_only=True))
        except pickle.UnpicklingError:
            raise ValueError(f'{name} holds more than tensors and plain data: nothing of it was run') from None
        except Exception as error:   # whatever a file of somebody else's makes torch stumble over
            raise ValueError(f'{name} is no file that torch.save writes ({type(error).__name__})') from None
        if not isinstance(parts[-1], dict):
            raise ValueError(f'{name} is not what a rank saves, a dict')
    return parts


def _manifest(step: int, files: Mapping[str, str]) -> dict[str, Any]:
    """Of files with their digests; a digest of itself comes last."""
    return {'step': step, 'files': files, 'digest': hashlib.sha256(json.dumps([step, files]).encode()).hexdigest()}


def _digest(file: Path) -> bytes:
    with open(file, 'rb') as content:
        return hashlib.file_digest(content, 'sha256').digest()


def sync(folder: Path) -> None:
    """Let a rename reach the disk."""
    if os.name == 'posix':
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
