"""A rank saves the trace of its latest step: its spans, and what tells how its clock differs from others'."""

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from fewgpu.device import Device
from fewgpu.schedule import Message, Schedule
from fewgpu.trace_files import RankTrace, Recorded, Row, write

if TYPE_CHECKING:
    from fewgpu.hybrid import Replicas
    from fewgpu.transport.ranks import Ranks
    from fewgpu.transport.stamps import Stamp

_LONG = 10.0   # seconds before a step whose stamps still tell about its clocks, which drift


def save(folder: str | os.PathLike[str], schedule: Schedule, spans: Sequence[Sequence[tuple]], names: Sequence[str],
         arrived: Mapping[Message, float], devices: Sequence[Device], ranks: 'Ranks | None',
         replicas: 'Replicas | None') -> Path:
    """What a Pipeline did in its latest step; `devices` are those of the rows, or of this rank's.

    Raises ValueError if there was none, OSError if it cannot be written.
    """
    if not any(spans):
        raise ValueError('there is no trace yet: let the pipeline train a step before save_trace')
    clocked = [on_host_clock(row, devices[0 if ranks else place]) for place, row in enumerate(spans)]
    # (Their threads go on noting meanwhile: copies.)
    own = {ranks.members[row]: ([*peer.stamps.sent], [*peer.stamps.came])
           for row, peer in ranks.peers.items()} if ranks else {}
    sizes = {stamp.message: (stamp.number, stamp.size) for sent, _ in own.values() for stamp in sent
             if stamp.step == ranks.step}
    came = {stamp.message: (stamp.number, None) for _, received in own.values() for stamp in received
            if stamp.step == ranks.step}
    rows = tuple(Row(number, name, tuple(
        Recorded(op, *times, arrived.get(op.message) if op.kind == 'recv' else None,
                 *(sizes if op.kind == 'send' else came).get(op.message, (None, None)))
        for op, *times in row)) for number, (name, row) in enumerate(zip(names, clocked)) if row)
    replica, part = replicas.index if replicas else (0, 0)
    members = tuple(ranks.members) if ranks else (_rank(),)
    first = min(row.spans[0].start for row in rows)
    return write(RankTrace(
        _rank() if ranks else members[0], tuple(range(dist.get_world_size())) if replicas else members, members,
        run_id(), ranks.step if ranks else 0,
        {'name': schedule.name, 'stages': schedule.stages, 'micro_batches': schedule.micro_batches}, rows,
        replica, part, {rank: {'sent': _pairs(sent, first), 'came': _pairs(received, first)}
                        for rank, (sent, received) in own.items()},
        [(each.ranks, [*each.stamps]) for each in replicas.meetings] if replicas else []), folder)


def _pairs(stamps: Iterable['Stamp'], first: float) -> list[tuple[int, float]]:
    return [(stamp.number, stamp.seconds) for stamp in stamps if stamp.seconds > first - _LONG]


def on_host_clock(row: Iterable[tuple], device: Device) -> list[tuple]:
    """Spans of a device, (operation, start, end, ...), with times of time.perf_counter. Of a GPU's events it is known
    how long ago they were when all its work is done."""
    row = list(row)
    if device.is_virtual or not row:
        return row
    last = device.now()
    last.synchronize()
    now = time.perf_counter()
    return [(op, now - start.elapsed_time(last) / 1e3, now - end.elapsed_time(last) / 1e3, *more)
            for op, start, end, *more in row]


def run_id() -> str:
    """The same on all ranks that torch.distributed has, another one in every other run."""
    own = uuid.uuid4().hex
    if not (dist.is_available() and dist.is_initialized()):
        return own
    store = dist.PrefixStore('fewgpu trace', dist.distributed_c10d._get_default_store())
    return store.compare_set('run', '', own).decode()


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
