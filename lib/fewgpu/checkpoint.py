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
all of it is on the disk, so that a process that dies at any moment leaves the one before, also where the same step
is saved again: the new folder has a name of its own (`000000005.2`), and the older one goes afterwards. A file that is
cut short or altered does not match the manifest, and the checkpoint is passed over.
"""

import hashlib
import operator
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fewgpu.checkpoint_files import part_of, read_parts, sync, write_manifest, write_part
from fewgpu.collectives import Group, all_gather
from fewgpu.group import PeerError, is_distributed
from fewgpu.limit import verify_time_limit
from fewgpu.plain_data import verify_plain
from fewgpu.training_state import load_training_state, training_state

__all__ = ['Checkpoints', 'Saved', 'load_training_state', 'training_state']

_PARTIAL = '-partial'     # ends the name of a checkpoint that is being written
_FAILED = b'\xff' * 32    # a rank that cannot go on tells the others


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
        verify_time_limit(time_limit)
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
        if len({*self._all(lambda: _bytes_of(str(_verified(operator.index(step), state)).encode()))}) > 1:
            raise ValueError(f'the ranks save different steps, this one {step}: all take the same ones')
        step = operator.index(step)
        if later := [_step(folder) for folder in self._finished() if _step(folder) > step]:
            raise ValueError(f'{self.folder} holds a checkpoint of step {max(later)}, later than {step}: go on from it '
                             f'(latest()), or choose another folder')
        partial = self.folder / f'.{step:09}{_PARTIAL}'
        try:
            self._all(lambda: self._prepare(partial))
            digests = self._all(lambda: write_part(partial / part_of(self._rank), state))
            self._all(lambda: self._publish(step, digests, partial))
        except Exception:
            if self._rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        return self._finished()[-1]

    def latest(self) -> Saved | None:
        """The newest checkpoint that is whole, or None. Warns of newer ones that are not, and puts them aside,
        under names that end with '-damaged'. Raises ValueError, on all ranks, if they have read different ones."""
        damaged, saved = [], None
        for folder in reversed(self._finished()):
            try:
                saved = Saved(_step(folder), read_parts(folder, _step(folder)))
                break
            except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError) as error:
                warnings.warn(f'the checkpoint {folder} is not used: {error}', stacklevel=2)
                damaged.append(folder)
        read = [int(step, 16) - 1 for step in self._together((saved.step + 1 if saved else 0).to_bytes(32, 'big'))]
        if len({*read}) > 1:
            told = ', '.join(f'rank {rank} step {step}' if step >= 0 else f'rank {rank} none'
                             for rank, step in enumerate(read))
            raise ValueError(f'the ranks have read different checkpoints in {self.folder}: {told}: do all see the same '
                             f'folder, and does no other run write there?')
        for folder in damaged if self._rank == 0 else ():
            os.replace(folder, folder.with_name(f'{folder.name}-{secrets.token_hex(4)}-damaged'))
        return saved

    def _prepare(self, partial: Path) -> bytes:
        if self._rank == 0:
            for left in self.folder.glob(f'.*{_PARTIAL}'):   # by a run that died
                shutil.rmtree(left, ignore_errors=True)
            partial.mkdir()
        return bytes(32)

    def _publish(self, step: int, digests: list[str], partial: Path) -> bytes:
        if self._rank == 0:
            write_manifest(partial, step, digests)
            again = [_generation(folder) for folder in self._finished() if _step(folder) == step]
            os.replace(partial, self.folder / (f'{step:09}.{max(again) + 1}' if again else f'{step:09}'))
            sync(self.folder)
            newest = {_step(folder): folder for folder in self._finished()}
            for old in {*self._finished()} - {*[*newest.values()][-self._keep:]}:
                shutil.rmtree(old, ignore_errors=True)
        return bytes(32)

    def _finished(self) -> list[Path]:
        """The oldest first."""
        return sorted((path for path in self.folder.iterdir() if re.fullmatch(r'[0-9]+([.][0-9]+)?', path.name)),
                      key=lambda path: (_step(path), _generation(path)))

    def _all(self, work: Callable[[], bytes]) -> list[str]:
        """The 32 bytes that `work` returned on every rank, as text. Raises what it raised here, and PeerError where
        it failed on another rank."""
        failed = None
        try:
            mine = work()
        except Exception as error:
            failed, mine = error, _FAILED
        told = self._together(mine)
        if failed is not None:
            raise failed
        if _FAILED.hex() in told:
            rank = told.index(_FAILED.hex())
            raise PeerError(f'rank {rank} could not save its part: this checkpoint was given up, those before stay',
                            rank)
        return told

    def _together(self, mine: bytes = bytes(32)) -> list[str]:
        """32 bytes of every rank, as text; returns when all have come this far."""
        if self._group is None:
            return [mine.hex()]
        every = [torch.zeros(32, dtype=torch.uint8) for _ in range(self._group.size)]
        every[self._rank].copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        all_gather(every, self._group)
        return [bytes(one.tolist()).hex() for one in every]


def _step(folder: Path) -> int:
    return int(folder.name.partition('.')[0])


def _generation(folder: Path) -> int:
    """Of a step that has been saved several times."""
    return int(folder.name.partition('.')[2] or 1)


def _verified(step: int, state: Mapping[str, Any]) -> int:
    if step < 0:
        raise ValueError(f'a checkpoint is of at least 0 steps, not {step}')
    verify_plain(dict(state), 'the state')
    return step


def _bytes_of(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
