"""A timeline as Trace Event JSON, which https://ui.perfetto.dev opens."""

import json
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

from fewgpu.trace import WAITS, Timeline


def to_chrome(timeline: Timeline, path: str | PathLike[str] | None = None,
              pipelines: Sequence[Hashable] | None = None) -> str:
    """The timeline as JSON in the Trace Event format, also written to `path` if one is given.

    A thread a device; an operation is a slice whose arguments are its stage, its micro-batch and
    the weight version; live bytes are counters; arrows follow every micro-batch from stage to
    stage, among the rows of one pipeline where `pipelines` names that of each. Open the file in
    https://ui.perfetto.dev.
    """
    events = [*_threads(timeline), *_slices(timeline), *_counters(timeline),
              *_arrows(timeline, pipelines or [0] * len(timeline.rows))]
    text = json.dumps({'traceEvents': events, 'displayTimeUnit': 'ms'})
    if path is not None:
        Path(path).write_text(text, encoding='utf-8')
    return text


def _event(phase: str, device: int, seconds: float, name: str, **more: Any) -> dict[str, Any]:
    return {'ph': phase, 'pid': 0, 'tid': device, 'ts': _microseconds(seconds), 'name': name,
            **more}


def _microseconds(seconds: float) -> float:
    """To whole nanoseconds, as Perfetto counts: else neighbours could overlap by a rounding error,
    and it would draw one inside the other."""
    return round(seconds * 1e9) / 1e3


def _threads(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for device, name in enumerate(timeline.names):
        yield _event('M', device, 0.0, 'thread_name', args={'name': name})
        yield _event('M', device, 0.0, 'thread_sort_index', args={'sort_index': device})


def _slices(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for device, row in enumerate(timeline.rows):
        for op, start, end, _, version in row:
            facts = {'stage': op.stage, 'micro-batch': op.micro_batch, 'weight version': version}
            yield _event('X', device, start, str(op), cat=op.kind,
                         dur=round(_microseconds(end) - _microseconds(start), 3),
                         args={name: fact for name, fact in facts.items() if fact not in (None, -1)})


def _counters(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for device, row in enumerate(timeline.rows):
        for span in row:
            if span.live is not None:
                yield _event('C', device, span.end, f'live bytes, device {device}',
                             args={'bytes': span.live})


def _arrows(timeline: Timeline, pipelines: Sequence[Hashable]) -> Iterator[dict[str, Any]]:
    """From every forward to the one downstream, from every backward to the one upstream."""
    where = {(pipelines[device], *span.op[:3]): (device, span) for device, row in enumerate(timeline.rows)
             for span in row if span.op.kind not in WAITS}
    numbers = count()
    for (pipeline, kind, stage, micro_batch), (device, span) in where.items():
        step = {'F': 1, 'B': -1, 'I': -1}.get(kind)
        if step is None or (pipeline, kind, stage + step, micro_batch) not in where:
            continue
        there, arrival = where[pipeline, kind, stage + step, micro_batch]
        number, name = next(numbers), 'activation' if kind == 'F' else 'gradient'
        # An arrow belongs to the slice that is open at its time: it leaves from within one.
        yield _event('s', device, (span.start + span.end) / 2, name, cat='message', id=number)
        yield _event('f', there, arrival.start, name, cat='message', id=number, bp='e')
