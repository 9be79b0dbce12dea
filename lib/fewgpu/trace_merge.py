"""The traces of all ranks of a step, on one clock."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from fewgpu.clocks import Clocks, align, bounds_of
from fewgpu.schedule.garbage import no_garbage
from fewgpu.trace import Span, Timeline
from fewgpu.trace_files import RankTrace, TraceError, read


@dataclass(frozen=True)
class Merged:
    """What all devices did, seconds from the first start, and what is known of their messages."""

    timeline: Timeline
    schedule: Mapping[str, Any]                      #: name, stages, micro_batches
    pipelines: tuple[tuple[int, ...], ...]           #: of each row: which pipeline it belongs to (its ranks), ...
    parts: tuple[int, ...]                           #: ... and which part of a stage's tensors it has
    arrivals: tuple[Mapping[int, float], ...]        #: of each row: when what is received had come, by position
    sizes: tuple[Mapping[int, int], ...] = ()        #: of each row: bytes of what is sent, by position
    ranks: tuple[int, ...] = ()
    clocks: Clocks = field(default_factory=lambda: Clocks((0.0,), (0.0,)))

    @classmethod
    def of(cls, timeline: Timeline, schedule: Mapping[str, Any] = {'name': '', 'stages': 0, 'micro_batches': 0}
           ) -> 'Merged':
        """A timeline whose devices have one clock, as a simulated one."""
        rows = len(timeline.rows)
        return cls(timeline, schedule, ((0,),) * rows, (0,) * rows, ({},) * rows, ({},) * rows)


def find(places: Iterable[str | PathLike[str]]) -> list[Path]:
    """The files of traces among files and folders. Raises TraceError if there is none."""
    found: dict[Path, None] = {}
    for place in map(Path, places):
        if place.is_dir():
            inside = sorted(place.glob('rank-*.json'), key=lambda file: (len(file.name), file.name))
            if not inside:
                raise TraceError(f'there is no trace in {place}: a run writes rank-0.json, rank-1.json, ... there by '
                                 f'save_trace({str(place)!r})')
            found |= dict.fromkeys(inside)
        elif place.is_file():
            found[place] = None
        else:   # or a pipe, say, which may never end
            raise TraceError(f'there is no file {place}: name the folder that save_trace wrote to, or the files in it')
    if not found:
        raise TraceError('name the folder that save_trace wrote to, or the files in it')
    return list(found)


def load(places: Iterable[str | PathLike[str]]) -> Merged:
    """The traces in files and folders, merged. Raises TraceError, a sentence, if that cannot be done."""
    files = find(places)
    try:
        return merge({str(file): read(file) for file in files})
    except OSError as error:
        raise TraceError(f'{error.filename} cannot be read ({error.strerror})') from None


@no_garbage()
def merge(traces: Mapping[str, RankTrace]) -> Merged:
    """The traces of all ranks of one step, by the names of their files. Raises TraceError if they do not belong
    together, or if some are missing."""
    verify_together(traces)
    ordered = sorted(traces.values(), key=lambda trace: trace.rank)
    ranks = tuple(trace.rank for trace in ordered)
    first = [min(row.spans[0].start for row in trace.rows if row.spans) for trace in ordered]
    clocks = align(bounds_of([trace.stamps for trace in ordered], ranks, _meetings(ordered)), first)
    begin = min(start - offset for start, offset in zip(first, clocks.offsets))
    rows, names, pipelines, parts, arrivals, sizes = [], [], [], [], [], []
    for trace, offset in zip(ordered, clocks.offsets):
        for row in trace.rows:
            rows.append(tuple(Span(span.op, span.start - offset - begin, span.end - offset - begin, span.live,
                                   span.version) for span in row.spans))   # in this order: the first starts at 0.0
            names.append(row.name)
            pipelines.append(trace.members)
            parts.append(trace.part)
            arrivals.append({place: span.arrived - offset - begin for place, span in enumerate(row.spans)
                             if span.arrived is not None})
            sizes.append({place: span.size for place, span in enumerate(row.spans) if span.size is not None})
    return Merged(Timeline(tuple(rows), tuple(names)), ordered[0].schedule, tuple(pipelines), tuple(parts),
                  tuple(arrivals), tuple(sizes), ranks, clocks)


def verify_together(traces: Mapping[str, RankTrace]) -> None:
    """Raises TraceError unless these are the traces of all ranks of one step of one run."""
    (name, first), *others = traces.items()
    seen = {first.rank: name}
    for other, trace in others:
        if trace.run != first.run:
            raise TraceError(f'{name} and {other} are of different runs: give the files of one, and let every '
                             f'run save into a folder of its own')
        if trace.rank in seen:
            raise TraceError(f'{seen[trace.rank]} and {other} are both of rank {trace.rank}: leave one out')
        if (trace.ranks, trace.schedule['name']) != (first.ranks, first.schedule['name']):
            raise TraceError(f'{name} ({first.schedule["name"]} on {len(first.ranks)} ranks) and {other} '
                             f'({trace.schedule["name"]} on {len(trace.ranks)}) are not of the same pipeline: let '
                             f'each save into a folder of its own')
        if trace.step != first.step:
            raise TraceError(f'{name} is of step {first.step}, and {other} of step {trace.step}: let all ranks call '
                             f'save_trace after the same step')
        seen[trace.rank] = other
    if missing := sorted({*first.ranks} - seen.keys()):
        some = ', '.join(map(str, missing[:8])) + (', ...' if len(missing) > 8 else '')
        raise TraceError(f'of {len(first.ranks)} ranks {len(seen)} are here; missing: rank {some}. Add their files '
                         f'(each rank calls save_trace, and nodes without a common disk each have their own)')


def _meetings(traces: Sequence[RankTrace]) -> Iterator[tuple[tuple[int, ...], dict]]:
    """Of the same ranks: {rank: {number: (start, end)}}."""
    times: dict[tuple[int, ...], dict[int, dict]] = defaultdict(dict)
    for trace in traces:
        for ranks, stamps in trace.meetings:
            times[ranks][trace.rank] = {number: (start, end) for number, start, end in stamps}
    for ranks, told in times.items():
        if told.keys() == {*ranks}:
            yield ranks, told
