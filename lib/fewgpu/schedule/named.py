"""A schedule by its name, for a number of stages, with micro-batches to come."""

from collections.abc import Callable
from functools import partial

from fewgpu.schedule import SCHEDULES, Schedule, check, interleaved, v_shape


def schedule_maker(schedule: str | Callable[[int, int], Schedule], stages: int,
                   devices: int | None = None) -> Callable[[int], Schedule]:
    """A function from the number of micro-batches to the schedule.

    `schedule` is a name in SCHEDULES, or a function of stages and micro-batches. 'interleaved' deals
    the stages out to `devices` (by default half as many as stages).

    Raises ValueError for an unknown name, or stages that cannot be dealt out; the function raises
    ScheduleError if a schedule that is not ours breaks a law (see `check`).
    """
    if isinstance(schedule, Schedule):
        raise TypeError(f'the schedule {schedule.name} is for {schedule.micro_batches} micro-batches, '
                        f'and a mini-batch may have fewer: pass a function of stages and micro-batches '
                        f'that returns one')
    if callable(schedule):
        return lambda micro_batches: _checked(schedule(stages, micro_batches), stages, micro_batches)
    if schedule not in SCHEDULES:
        raise ValueError(f'there is no schedule {schedule!r}: choose from {", ".join(SCHEDULES)}, or '
                         f'pass a function of stages and micro-batches')
    if schedule == 'pipemare':   # an update a mini-batch: a step, which drains the pipeline, is synchronous
        return lambda micro_batches: SCHEDULES[schedule](stages, micro_batches, update_every=micro_batches)
    if schedule == 'v-shape':   # two stages a device
        return lambda micro_batches: v_shape(stages, micro_batches)
    if schedule != 'interleaved':
        return lambda micro_batches: SCHEDULES[schedule](stages, micro_batches)
    devices = devices or max(1, stages // 2)
    if stages % devices:
        raise ValueError(f'interleaved: {stages} stages cannot be dealt out to {devices} devices '
                         f'evenly; the balance needs a multiple of {devices} numbers')
    return lambda micro_batches: interleaved(devices, micro_batches, v=stages // devices)


def schedule_makers(schedule: str | Callable[[int, int], Schedule], stages: int, chunks: int,
                    devices: int | None = None) -> tuple[Callable[[int], Schedule], ...]:
    """`schedule_maker` for a mini-batch, and one for many as one schedule, from the number of all their
    micro-batches: there '2bw' and 'pipemare' update once a mini-batch, after every `chunks`."""
    make = schedule_maker(schedule, stages, devices)
    if schedule in ('2bw', 'pipemare'):
        return make, partial(SCHEDULES[schedule], stages, update_every=chunks)
    return make, make


def _checked(schedule: Schedule, stages: int, micro_batches: int) -> Schedule:
    if not isinstance(schedule, Schedule):
        raise TypeError(f'the schedule function is to return a Schedule, and returned {schedule!r}')
    if (schedule.stages, schedule.micro_batches) != (stages, micro_batches):
        raise ValueError(f'the schedule {schedule.name} is for {schedule.stages} stages and '
                         f'{schedule.micro_batches} micro-batches, not for {stages} and '
                         f'{micro_batches}')
    if any(op.message for op in schedule):
        raise ValueError(f'the schedule {schedule.name} has sends and receives already: the pipeline '
                         f'adds them (with_messages)')
    check(schedule)
    return schedule
