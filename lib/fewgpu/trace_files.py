"""The trace of a rank as a file, `rank-0.json`: what it did in a step, by its own clock.

    {"format": "fewgpu trace", "version": 1, "rank": 1, "ranks": [0, 1], "members": [0, 1], "run": "3f...", "step": 7,
     "replica": 0, "part": 0, "schedule": {"name": "1f1b", "stages": 2, "micro_batches": 8},
     "rows": [{"row": 1, "name": "rank 1", "spans": [[...], ...]}],
     "stamps": {"0": {"sent": [[number, seconds], ...], "came": [[number, seconds], ...]}},
     "meetings": [{"ranks": [0, 1], "stamps": [[number, start, end], ...]}]}

A span is a list, whose fields `SPAN` names; those after `version` are null but for messages. All times are seconds of
the rank's own clock. Plain JSON: nothing in it is run when it is read.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fewgpu.schedule import Message, Op
from fewgpu.schedule.garbage import no_garbage

FORMAT, VERSION = 'fewgpu trace', 1
AVERAGING = 'data parallel'            # what a DataParallel's schedule is called, ...
BUCKET, AVERAGES = 'bucket', 'averages'   # ... and what its two threads wait for from each other
LATEST = 1e10   # seconds: no clock shows more, nor less than minus that


class TraceError(ValueError):
    """A file that is no trace, or traces that do not belong together; a sentence for whoever gave them."""


class Recorded(NamedTuple):
    """One operation of a rank, by its own clock (seconds); `number` and what follows are of a message between ranks."""

    op: Op
    start: float
    end: float
    live: int | None = None        #: bytes on the device at the end
    version: int | None = None     #: of the weights
    arrived: float | None = None   #: when what is received had come, if known
    number: int | None = None      #: of the message, among those from its sender to its receiver
    size: int | None = None        #: bytes on the wire


SPAN = ('kind', 'stage', 'micro-batch', 'start', 'end', 'live bytes', 'weight version',
        'what', 'from stage', 'to stage', 'sender', 'receiver', 'arrived', 'number', 'bytes')


@dataclass(frozen=True)
class Row:
    """What one device did, in order."""

    row: int    #: of the schedule
    name: str
    spans: tuple[Recorded, ...]


@dataclass(frozen=True)
class RankTrace:
    """What a rank knows of one step."""

    rank: int
    ranks: tuple[int, ...]      #: all that took part
    members: tuple[int, ...]    #: those of the same pipeline, in the order of the rows
    run: str                    #: the same on all ranks of a run, and on no others
    step: int
    schedule: Mapping[str, Any]
    rows: tuple[Row, ...]
    replica: int = 0
    part: int = 0
    #: by rank: 'sent' and 'came', each a list of (number, seconds)
    stamps: Mapping[int, Mapping[str, Sequence[tuple[int, float]]]] = field(default_factory=dict)
    #: collectives from whose call nobody returns before all have called it: (ranks, [(number, start, end)])
    meetings: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, float, float]]]] = ()


def name_of(rank: int) -> str:
    """Of its file."""
    return f'rank-{rank}.json'


def write(trace: RankTrace, folder: str | os.PathLike[str]) -> Path:
    """Write `rank-N.json` into the folder, which is made: the whole file, or none. Returns its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / name_of(trace.rank), folder / f'.{name_of(trace.rank)}-{os.getpid()}'
    try:
        with open(part, 'w', encoding='utf-8') as file:
            json.dump(_as_json(trace), file, allow_nan=False, separators=(',', ':'))
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return path


def _as_json(trace: RankTrace) -> dict[str, Any]:
    plain = {name: value for name, value in vars(trace).items() if name not in ('rows', 'meetings')}
    return {'format': FORMAT, 'version': VERSION, **plain, 'fields': SPAN,
            'rows': [{'row': row.row, 'name': row.name, 'spans': [_as_list(span) for span in row.spans]}
                     for row in trace.rows],
            'meetings': [{'ranks': ranks, 'stamps': stamps} for ranks, stamps in trace.meetings]}


def _as_list(span: Recorded) -> list[Any]:
    op, start, end, live, version, *more = span
    what, source, stage, _, sender, receiver = op.message or (None,) * 6
    return [op.kind, op.stage, op.micro_batch, start, end, live, version, what, source, stage, sender, receiver, *more]


@no_garbage()
def read(path: str | os.PathLike[str]) -> RankTrace:
    """The trace in a file. Raises TraceError, a sentence, if it is none, and OSError if it cannot be read."""
    path = Path(path)
    data = path.read_bytes()
    if not data.strip():
        raise TraceError(f'{path} is empty: its rank did not come to save its trace; run it again')
    try:
        stored = json.loads(data)
    except UnicodeDecodeError:
        raise TraceError(f'{path} is no trace: it is no text') from None
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()) - 1 or 'Unterminated' in error.msg:
            raise TraceError(f'{path} ends in the middle (after {len(data)} bytes): copy it again, or save it '
                             f'again with save_trace') from None
        raise TraceError(f'{path} is no trace: it is no JSON (line {error.lineno}, column {error.colno}: '
                         f'{error.msg})') from None
    except (ValueError, RecursionError):   # numbers of thousands of digits, nestings of thousands of lists
        raise TraceError(f'{path} is no trace: it has numbers or nestings that no trace has') from None
    if not isinstance(stored, dict) or stored.get('format') != FORMAT:
        raise TraceError(f'{path} is no trace of a rank: save_trace(folder) of a Pipeline or a DataParallel writes '
                         f'them')
    if stored.get('version') != VERSION:
        raise TraceError(f'{path} is a trace of version {stored.get("version")!r}, and this kit reads version '
                         f'{VERSION}: use the kit that wrote it')
    try:
        return _from_json(stored)
    except _Wrong as wrong:
        raise TraceError(f'{path} is damaged: {wrong}; save it again with save_trace') from None


class _Wrong(Exception):
    """What is wrong with a part of a file."""


def _from_json(stored: Mapping[str, Any]) -> RankTrace:
    rank, ranks, members = _whole(stored, 'rank'), _ranks(stored, 'ranks'), _ranks(stored, 'members')
    if rank not in members or not {*members} <= {*ranks}:
        raise _Wrong(f'rank {rank} is not among its own members {list(members)} and ranks {list(ranks)}')
    schedule = _typed(stored, 'schedule', dict)
    if not isinstance(schedule.get('name'), str):
        raise _Wrong('its schedule has no name')
    stages, _ = (_whole(schedule, name, most=10**6) for name in ('stages', 'micro_batches'))
    rows = tuple(_row(row, stages) for row in _typed(stored, 'rows', list))
    if not any(row.spans for row in rows):
        raise _Wrong('it holds no operation')
    stamps = {}
    for peer, both in _typed(stored, 'stamps', dict).items():
        if not (peer.isascii() and peer.isdigit() and isinstance(both, dict)):
            raise _Wrong(f'its stamps of {peer!r} are of no rank')
        stamps[int(peer)] = {way: _stamps(both.get(way), 2) for way in ('sent', 'came')}
    meetings = [(_ranks(_mapping(each), 'ranks'), _stamps(each.get('stamps'), 3))
                for each in _typed(stored, 'meetings', list)]
    return RankTrace(rank, ranks, members, _typed(stored, 'run', str), _whole(stored, 'step'), schedule, rows,
                     _whole(stored, 'replica'), _whole(stored, 'part'), stamps, meetings)


def _row(stored: Any, stages: int) -> Row:
    number, name = _whole(_mapping(stored), 'row'), _typed(stored, 'name', str)
    spans, before = [], -LATEST
    for position, fields in enumerate(_typed(stored, 'spans', list)):
        try:
            kind, stage, i, start, end, live, version, what, *ends, arrived, serial, size = fields
            op = Op(kind, stage, i, None if what is None else Message(what, ends[0], ends[1], i, ends[2], ends[3]))
            fits = (len(fields) == len(SPAN) and type(kind) is str and type(stage) is int and type(i) is int
                    and (what is None or type(what) is str and all(type(end) is int for end in ends))
                    and all(part is None or type(part) is int and 0 <= part < 2**63
                            for part in (live, version, serial, size))
                    and -LATEST < start <= end < LATEST and (arrived is None or -LATEST < arrived < LATEST))
        except (TypeError, ValueError, OverflowError, IndexError):
            fits = False
        if not fits or not 0 <= stage < stages:
            raise _Wrong(f'operation {position} of {name} is none, or its times are none: {str(fields)[:80]}')
        if start < before:
            raise _Wrong(f'operation {position} of {name} ({op}) starts before the one before it')
        before = start
        spans.append(Recorded(op, start, end, live, version, arrived, serial, size))
    return Row(number, name, tuple(spans))


def _stamps(stored: Any, length: int) -> list[tuple]:
    stamps = []
    for stamp in stored if isinstance(stored, list) else [None]:
        if not (isinstance(stamp, list) and len(stamp) == length and type(stamp[0]) is int
                and all(type(time) in (int, float) and -LATEST < time < LATEST for time in stamp[1:])):
            raise _Wrong(f'one of its time stamps is none: {str(stamp)[:80]}')
        stamps.append(tuple(stamp))
    return stamps


def _typed(stored: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(stored.get(name), kind):
        raise _Wrong(f'its {name} is missing, or is no {kind.__name__}')
    return stored[name]


def _whole(stored: Mapping[str, Any], name: str, most: int = 10**9) -> int:
    value = stored.get(name)
    if type(value) is not int or not 0 <= value < most:
        raise _Wrong(f'its {name} is missing, or is no whole number from 0 to {most - 1}')
    return value


def _ranks(stored: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = _typed(stored, name, list)
    if not values or len({*map(str, values)}) < len(values) or not all(type(r) is int and r >= 0 for r in values):
        raise _Wrong(f'its {name} are no list of different ranks')
    return tuple(values)


def _mapping(stored: Any) -> Mapping[str, Any]:
    if not isinstance(stored, dict):
        raise _Wrong(f'a part of it is no object: {str(stored)[:80]}')
    return stored
