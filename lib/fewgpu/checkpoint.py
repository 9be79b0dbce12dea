"""Checkpoints: a run that was saved in the middle of an epoch goes on as if nothing had happened.

    checkpoints = Checkpoints('runs/mine')
    done = 0
    if saved := checkpoints.latest():
        done = saved.step
        load_training_state(saved, model, optimizer)
    for step, (x, y) in enumerate(batches(seed=0)[done:], done + 1):
        ...
        checkpoints.save(step, training_state(model, optimizer))

A checkpoint is a folder with a file a rank and a manifest. It is written under another name and renamed when
all of it is on the disk, so that a process that dies at any moment leaves the one before (also where the same step
is saved again: the older one is aside for that moment, and `latest` finds it there). A file that is cut short or
altered does not match the manifest, and the checkpoint is passed over.
"""

import hashlib
import json
import operator
import os
import pickle
import secrets
import shutil
import warnings
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fewgpu.group import is_distributed
from fewgpu.collectives import Group, all_gather
from fewgpu.training_state import load_training_state, training_state

__all__ = ['Checkpoints', 'Saved', 'load_training_state', 'training_state']

_MANIFEST = 'manifest.json'
_PARTIAL, _ASIDE = '-partial', '-before'   # of a checkpoint that is being written, and of one that it replaces


class Saved:
    """A checkpoint that has been read: the number of steps, and what each rank saved."""

    def __init__(self, step: int, parts: list[dict[str, Any]]) -> None:
        self.step, self.parts = step, parts

    def whole(self, what: str) -> dict[str, Any]:
        """The entries of all ranks under `what`, put together; the lowest rank that has one counts."""
        together: dict[str, Any] = {}
        for part in reversed(self.parts):
            together.update(part.get(what) or {})
        return together

    def own(self) -> dict[str, Any]:
        """What this rank saved; rank 0's, if there were fewer ranks."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        return self.parts[rank if rank < len(self.parts) else 0]


class Checkpoints:
    """The checkpoints of a run, in a folder: the newest `keep` of them.

    On ranks of torch.distributed all call `save` and `latest`, on a folder that all see; `time_limit`
    (seconds) bounds their waiting for each other.

    Raises ValueError if none is kept, OSError if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2, time_limit: float = 60.0) -> None:
        if keep < 1:
            raise ValueError(f'at least one checkpoint is kept, not {keep}')
        self.folder, self._keep = Path(folder), keep
        self._group = Group(time_limit=time_limit) if is_distributed(None, time_limit) else None
        self._rank = self._group.rank if self._group else 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write what `training_state` gave after `step` mini-batches; the folder of this checkpoint.

        Raises TypeError for what is neither a tensor nor plain data, which no reader should accept; ValueError
        for a negative step, one that is not that of the other ranks, and where the folder holds a later one;
        OSError (the disk is full, say) on the rank where it happened: the checkpoints before stay. PeerError if
        another rank failed or is late.
        """
        step = _verified(operator.index(step), state)
        if len({*self._together(_bytes_of(str(step).encode()))}) > 1:
            raise ValueError(f'the ranks save different steps, this one {step}: all take the same ones')
        if later := [int(folder.name) for folder in self._finished() if int(folder.name) > step]:
            raise ValueError(f'{self.folder} holds a checkpoint of step {max(later)}, later than {step}: go on from it '
                             f'(latest()), or choose another folder')
        final, partial = self.folder / f'{step:09}', self.folder / f'.{step:09}{_PARTIAL}'
        if self._rank == 0:
            for left in self.folder.glob(f'.*{_PARTIAL}'):   # by a run that died
                shutil.rmtree(left, ignore_errors=True)
            partial.mkdir()
        self._together()
        file = partial / f'rank-{self._rank}.pt'
        with open(file, 'wb') as out:
            torch.save(dict(state), out)
            out.flush()
            os.fsync(out.fileno())
        _read_back(file)
        digests = self._together(_digest(file))
        if self._rank == 0:
            self._publish(step, digests, partial, final)
        self._together()
        return final

    def latest(self) -> Saved | None:
        """The newest checkpoint that is whole, or None. Warns of newer ones that are not, and puts them aside,
        under names that end with '-damaged'."""
        damaged, saved = [], None
        if self._rank == 0:
            self._put_back()
        self._together()
        for folder in reversed(self._finished()):
            try:
                saved = _read(folder)
                break
            except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError) as error:
                warnings.warn(f'the checkpoint {folder} is not used: {error}', stacklevel=2)
                damaged.append(folder)
        self._together()   # all have read
        for folder in damaged if self._rank == 0 else ():
            os.replace(folder, folder.with_name(f'{folder.name}-{secrets.token_hex(4)}-damaged'))
        return saved

    def _publish(self, step: int, digests: list[str], partial: Path, final: Path) -> None:
        files = {f'rank-{rank}.pt': digest for rank, digest in enumerate(digests)}
        with open(partial / _MANIFEST, 'w', encoding='utf-8') as out:
            json.dump({'step': step, 'files': files, 'digest': _of_manifest(step, files)}, out)
            out.flush()
            os.fsync(out.fileno())
        _sync(partial)
        self._put_back()
        if final.exists():   # the same step, saved by a run that went this way before
            os.replace(final, aside := final.with_name(f'.{final.name}{_ASIDE}'))
            os.replace(partial, final)
            _sync(self.folder)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.replace(partial, final)
            _sync(self.folder)
        for old in self._finished()[:-self._keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _put_back(self) -> None:
        """What a process that died while it replaced a checkpoint has left aside."""
        for aside in self.folder.glob(f'.*{_ASIDE}'):
            final = aside.with_name(aside.name.removeprefix('.').removesuffix(_ASIDE))
            if final.exists():
                shutil.rmtree(aside)
            else:
                os.replace(aside, final)

    def _finished(self) -> list[Path]:
        """The oldest first."""
        return sorted((path for path in self.folder.iterdir() if path.name.isascii() and path.name.isdigit()),
                      key=lambda path: int(path.name))

    def _together(self, mine: bytes = bytes(32)) -> list[str]:
        """32 bytes of every rank, as text; returns when all have come this far."""
        if self._group is None:
            return [mine.hex()]
        every = [torch.zeros(32, dtype=torch.uint8) for _ in range(self._group.size)]
        every[self._rank].copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        all_gather(every, self._group)
        return [bytes(one.tolist()).hex() for one in every]


def _read(folder: Path) -> Saved:
    """Raises ValueError, or what Python raises, if a file is not as it was written."""
    manifest = json.loads((folder / _MANIFEST).read_text(encoding='utf-8'))
    step, files = manifest['step'], manifest['files']
    if manifest['digest'] != _of_manifest(step, files) or step != int(folder.name):
        raise ValueError(f'{_MANIFEST} is not as it was written (cut short, or altered)')
    parts = []
    for name, digest in files.items():
        if _digest(folder / name).hex() != digest:
            raise ValueError(f'{name} is not as it was written (cut short, or altered)')
        try:
            parts.append(torch.load(folder / name, map_location='cpu', weights_only=True))
        except pickle.UnpicklingError:
            raise ValueError(f'{name} holds more than tensors and plain data: nothing of it was run') from None
    return Saved(step, parts)


def _read_back(file: Path) -> None:
    """Raises TypeError for what even this torch could not read again (b'', for one). Tensors are not read for it."""
    try:
        torch.load(os.fspath(file), map_location='cpu', weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise TypeError('the state holds plain data that torch.load(weights_only=True) refuses, as an empty bytes '
                        'or a number of a thousand digits: leave it out') from error


def _of_manifest(step: int, files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps([step, files]).encode()).hexdigest()


# What torch.load(weights_only=True) reads.
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)


def _verified(step: int, state: Mapping[str, Any]) -> int:
    if step < 0:
        raise ValueError(f'a checkpoint is of at least 0 steps, not {step}')
    _verify(state, 'the state')
    return step


def _verify(value: Any, where: str) -> None:
    """Raises TypeError, naming the place, for what could not be read again."""
    if type(value) in _CONTAINERS:
        for key in value if isinstance(value, dict) else ():
            _verify(key, f'a key of {where}')
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _verify(part, f'{where}[{key!r}]')
    elif type(value) not in (*_PLAIN, *_TENSORS):
        raise TypeError(f'{where} is a {type(value).__name__}: a checkpoint holds tensors and plain data only: save '
                        f'its state_dict(), or a float, list or dict of it')


def _bytes_of(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _digest(file: Path) -> bytes:
    with open(file, 'rb') as content:
        return hashlib.file_digest(content, 'sha256').digest()


def _sync(folder: Path) -> None:
    """Let a rename reach the disk."""
    if os.name == 'posix':
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
