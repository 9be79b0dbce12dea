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
all of it is on the disk, so that a process that dies at any moment leaves the one before. A file that is cut
short or altered does not match the manifest, and the checkpoint is passed over.
"""

import hashlib
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fewgpu.collectives import Group, all_gather
from fewgpu.optimizer_state import load_named_state, named_state
from fewgpu.tensor_parallel import Sharded, own_state_dict, plain_state_dict
from fewgpu.tensor_parallel_state import own_optimizer_state, plain_optimizer_state

_MANIFEST = 'manifest.json'


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
        self._group = Group(time_limit=time_limit) if dist.is_initialized() and dist.get_world_size() > 1 else None
        self._rank = self._group.rank if self._group else 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write what `training_state` gave after `step` mini-batches; the folder of this checkpoint.

        Raises TypeError for what is neither a tensor nor plain data, which no reader should accept; OSError (the disk is full, say), on the rank where it happened; the checkpoints before stay.
        PeerError if another rank failed or is late.
        """
        _verify(state, 'the state')
        final, partial = self.folder / f'{step:09}', self.folder / f'.{step:09}-partial'
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)   # of a run that died
            partial.mkdir()
        self._together(torch.zeros(32, dtype=torch.uint8))
        file = partial / f'rank-{self._rank}.pt'
        with open(file, 'wb') as out:
            torch.save(dict(state), out)
            out.flush()
            os.fsync(out.fileno())
        digests = self._together(torch.frombuffer(bytearray(_digest(file)), dtype=torch.uint8))
        if self._rank == 0:
            self._publish(step, digests, partial, final)
        self._together(torch.zeros(32, dtype=torch.uint8))
        return final

    def latest(self) -> Saved | None:
        """The newest checkpoint that is whole, or None. Warns of those that are not."""
        for folder in sorted(self._finished(), reverse=True):
            try:
                return _read(folder)
            except (OSError, ValueError, KeyError, RuntimeError, EOFError) as error:
                warnings.warn(f'the checkpoint {folder} is not used: {error}', stacklevel=2)
        return None

    def _publish(self, step: int, digests: list[str], partial: Path, final: Path) -> None:
        with open(partial / _MANIFEST, 'w', encoding='utf-8') as out:
            json.dump({'step': step, 'files': {f'rank-{rank}.pt': digest for rank, digest in enumerate(digests)}}, out)
            out.flush()
            os.fsync(out.fileno())
        shutil.rmtree(final, ignore_errors=True)   # the same step, saved by a run that went this way before
        os.replace(partial, final)
        _sync(self.folder)
        for old in sorted(self._finished())[:-self._keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _finished(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.name.isdigit()]

    def _together(self, mine: torch.Tensor) -> list[str]:
        """32 bytes of every rank, as text; returns when all have come this far."""
        if self._group is None:
            return [bytes(mine.tolist()).hex()]
        every = [torch.empty_like(mine) for _ in range(self._group.size)]
        every[self._rank].copy_(mine)
        all_gather(every, self._group)
        return [bytes(one.tolist()).hex() for one in every]


def training_state(model: Any, optimizer: torch.optim.Optimizer | None = None, **more: Any) -> dict[str, Any]:
    """All that a run needs to go on, of this rank: weights, what the optimizer remembers, random numbers.

    `model` is a module, or an engine that has its optimizers itself (Pipeline, ZeRO, ...). `more` are objects
    with a state_dict (a scaler, a `LossScale`, a learning-rate schedule) or plain values (the epoch). All ranks call
    it. Where all ranks hold the same, only rank 0 keeps it. The names are the plain model's, and values whole: any
    engine goes on from them. (Buffers of replicas within one process are those of the first.)
    """
    whole = not getattr(model, 'ranks', None)   # a Pipeline on ranks: each holds its stages
    keeps = not whole or not dist.is_initialized() or dist.get_rank() == 0
    module = model if isinstance(model, torch.nn.Module) else model.module
    cut = any(isinstance(part, Sharded) for part in module.modules())
    weights = plain_state_dict(module) if cut else model.state_dict()   # on ranks it may take all of them
    if hasattr(model, 'optimizer_state'):
        remembered = model.optimizer_state()
    else:
        remembered = named_state(model.named_parameters(), [optimizer] if optimizer else [])
    remembered = plain_optimizer_state(module, remembered) if cut else remembered
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {'model': weights if keeps else {}, 'optimizer': remembered if keeps else {},
            'random': {'cpu': torch.get_rng_state(), 'gpus': gpus},
            'more': {name: value.state_dict() if hasattr(value, 'state_dict') else value for name, value in more.items()}}


def load_training_state(saved: Saved, model: Any, optimizer: torch.optim.Optimizer | None = None,
                        **more: Any) -> dict[str, Any]:
    """Go on where `training_state` was taken, perhaps by another engine, cut or number of ranks.

    Objects in `more` take their state; the plain values are returned. With another number of ranks the random
    numbers go on as rank 0's. Raises KeyError or RuntimeError, as torch does, if something is missing.
    """
    module = model if isinstance(model, torch.nn.Module) else model.module
    own, weights = saved.own(), saved.whole('model')
    if len(saved.parts) == (dist.get_world_size() if dist.is_initialized() else 1):
        weights |= own['model']   # of pipelines side by side each has running statistics of its own
    model.load_state_dict(own_state_dict(module, weights))
    remembered: dict[str, dict[str, Any]] = {'state': {}, 'options': {}}
    for part in reversed(saved.parts):
        for what, entries in (part.get('optimizer') or {}).items():
            remembered[what].update(entries)
    remembered = own_optimizer_state(module, remembered)
    if hasattr(model, 'load_optimizer_state'):
        model.load_optimizer_state(remembered)
    elif optimizer is not None:
        load_named_state(model.named_parameters(), [optimizer], remembered)
    torch.set_rng_state(own['random']['cpu'])
    for gpu, state in enumerate(own['random']['gpus'][:torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, gpu)
    for name, thing in more.items():
        thing.load_state_dict(own['more'][name])
    return {name: value for name, value in own['more'].items() if name not in more}


def _read(folder: Path) -> Saved:
    """Raises ValueError if a file is not what the manifest says."""
    manifest = json.loads((folder / _MANIFEST).read_text(encoding='utf-8'))
    parts = []
    for name, digest in manifest['files'].items():
        if _digest(folder / name).hex() != digest:
            raise ValueError(f'{name} is not as it was written (cut short, or altered)')
        try:
            parts.append(torch.load(folder / name, map_location='cpu', weights_only=True))
        except pickle.UnpicklingError:
            raise ValueError(f'{name} holds more than tensors and plain data: nothing of it was run') from None
    return Saved(int(manifest['step']), parts)


def _verify(value: Any, where: str) -> None:
    """Raises TypeError, naming the place, for what torch.load(weights_only=True) would not read."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            _verify(part, f'{where}[{key!r}]')
    elif isinstance(value, (list, tuple, set)):
        for index, part in enumerate(value):
            _verify(part, f'{where}[{index}]')
    elif not isinstance(value, (torch.Tensor, torch.Size, torch.dtype, torch.device, bool, int, float, complex, str,
                                bytes, type(None))):
        raise TypeError(f'{where} is a {type(value).__name__}: a checkpoint holds tensors and plain data only; save its '
                        f'state_dict()')


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
