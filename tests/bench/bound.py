"""The speed that a schedule allows: its makespan in virtual time, with measured costs."""

from collections.abc import Callable, Iterator

from fewgpu.schedule import Op, Schedule

Cost = Callable[[Op], float]


def simulate(schedule: Schedule, cost: Cost) -> dict[Op, tuple[float, float]]:
    """Start and end of every operation of a schedule of F, R and B, in virtual time.

    An operation starts as soon as its device is free and what it needs is there: messages cost
    nothing. `cost(op)` and times are seconds.

    Raises ValueError if the schedule waits for itself.
    """
    times: dict[Op, tuple[float, float]] = {}
    free = [0.0] * len(schedule.rows)
    left = [list(reversed(row)) for row in schedule.rows]
    while any(left):
        moved = False
        for device, row in enumerate(left):
            while row and all(op in times for op in _needs(row[-1], schedule.stages)):
                op = row.pop()
                ready = (times[need][1] for need in _needs(op, schedule.stages))
                start = max([free[device], *ready])
                free[device] = start + cost(op)
                times[op] = start, free[device]
                moved = True
        if not moved:
            waiting = ', '.join(str(row[-1]) for row in left if row)
            raise ValueError(f'a deadlock: {waiting} all wait for one another')
    return times


def makespan(schedule: Schedule, cost: Cost) -> float:
    """Seconds from the first start to the last end, in virtual time."""
    return max(end for _, end in simulate(schedule, cost).values())


def textbook_speedup(stages: int, micro_batches: int) -> float:
    """Over one device, if all stages cost the same and nothing is recomputed: m n / (m + n - 1)."""
    return micro_batches * stages / (micro_batches + stages - 1)


def _needs(op: Op, stages: int) -> Iterator[Op]:
    """What has to be there before the operation, apart from what its own device did before."""
    if op.kind == 'F' and op.stage > 0:
        yield Op('F', op.stage - 1, op.micro_batch)
    if op.kind == 'B' and op.stage < stages - 1:
        yield Op('B', op.stage + 1, op.micro_batch)
