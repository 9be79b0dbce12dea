"""What a schedule costs besides time: stashes, weight versions, and stale gradients."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule


def stashes(schedule: Schedule) -> list[int]:
    """How many micro-batches each stage stashes at its peak, from a forward to its B or I (of several
    devices: where it is most).

    GPipe m (arXiv 1811.06965, section 2.3); 1F1B min(m, n - s) for stage s of n (arXiv 1806.03377,
    section 3.2). What stays between I and W is not counted.
    """
    change = {'F': 1, 'B': -1, 'I': -1}
    return [max(max(accumulate((change.get(op.kind, 0) for op in schedule.rows[device]
                                if op.stage == stage), initial=0))
                for device in schedule.devices_of[stage]) for stage in range(schedule.stages)]


def versions(schedule: Schedule) -> dict[Op, int]:
    """The weight version that each operation uses, or, for an update, makes. See `Schedule`."""
    return {op: version for row in schedule.rows
            for op, version in zip(row, versions_of(schedule, row)) if version is not None}


def versions_alive(schedule: Schedule) -> list[int]:
    """How many weight versions each stage keeps at its peak: those still to be used, the newest.

    GPipe 1; PipeDream n - s for stage s of n (arXiv 1806.03377, section 3.3), with vertical sync n on
    each; 2BW 2 (arXiv 2006.09503, section 3.1); without stashing 1.
    """
    alive = [1] * schedule.stages
    for row in schedule.rows:
        for _, stage, count in versions_kept(schedule, row):
            alive[stage] = max(alive[stage], count)
    return alive


def staleness(schedule: Schedule) -> dict[tuple[int, int], int]:
    """By how many updates (stage, micro-batch)'s gradient is late: those that the stage has made
    between the version of its forward and the update that applies it.

    Flush schedules 0; PipeDream n - 1 - s for stage s of n; 2BW 1; less in the first batches.
    """
    late = {}
    for row in schedule.rows:
        updates: dict[int, int] = defaultdict(int)
        for kind, stage, i, _ in row:
            if kind == 'U':
                updates[stage] += 1
            elif kind in ('B', 'W'):
                late[stage, i] = updates[stage] - schedule.version(stage, i)
    return late


def versions_of(schedule: Schedule, row: Sequence[Op]) -> Iterator[int | None]:
    """The weight version of every operation of a row; None for a send or receive."""
    updates: dict[int, int] = defaultdict(int)
    for kind, stage, i, message in row:
        if kind == 'U':
            updates[stage] += 1
        if message is not None:
            yield None
        elif kind == 'U' or schedule.weights == 'latest':
            yield updates[stage]
        else:
            yield schedule.version(stage, i, kind)


def versions_kept(schedule: Schedule, row: Sequence[Op]) -> Iterator[tuple[int, int, int]]:
    """(position, stage, how many versions the stage keeps after it) of every update of a row."""
    updates: dict[int, int] = defaultdict(int)
    for position, (kind, stage, *_) in enumerate(row):
        if kind == 'U':
            yield position, stage, 1 + len(schedule.needed_after(stage, updates[stage]))
            updates[stage] += 1
