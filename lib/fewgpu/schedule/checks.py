"""The laws that a schedule of a training step has to keep, and an explanation where it does not."""

from collections.abc import Iterable

from fewgpu.schedule.grid import Cell, ScheduleError
from fewgpu.schedule.op import SHARE, TARGET, Op
from fewgpu.schedule.passes import with_messages
from fewgpu.schedule.schedule import Schedule
from fewgpu.schedule.waits import verify_no_deadlock

KINDS = ('F', 'B', 'R', 'I', 'W', 'U', 'send', 'recv')
ORDER = (('F', 'R', 'a recompute starts from what the forward has kept'),
         ('F', 'B', 'a backward needs its own forward'),
         ('F', 'I', 'a backward needs its own forward'),
         ('R', 'B', 'a backward needs the graph that the recompute builds'),
         ('R', 'I', 'a backward needs the graph that the recompute builds'),
         ('I', 'W', 'the second half of a backward needs the first'))


def check(schedule: Schedule) -> None:
    """Verify that a schedule, with or without messages, is one of a training step.

    Its laws:

    - a stage runs each micro-batch once: F, then B, or I and W, all on one device
    - every forward follows its upstream forward, every backward its downstream backward and its
      own forward, W its I, and R stands between the forward and the backward
    - an update follows the backwards of the micro-batches it covers (all, or every
      `update_every`), and no other since the last one; a weight version exists when it is used
    - a stage that lives on several devices has the same updates on all of them
    - nobody waits for ever, whether a send waits for nobody ("buffered", as here), or for the last
      message of its kind to the same device to be received ("paired": see `verify_no_deadlock`)

    Raises ScheduleError, with what is wrong in a sentence or two, and the cell marked in the grid.
    """
    _verify_cells(schedule)
    _verify_counts(schedule)
    _verify_order(schedule)
    if any(op.message for op in schedule):
        _verify_messages(schedule)
    _verify_updates(schedule)
    for sends in ('buffered', 'paired'):
        verify_no_deadlock(schedule, sends=sends)


def _cells(schedule: Schedule) -> Iterable[tuple[Cell, Op]]:
    return (((device, position), op) for device, row in enumerate(schedule.rows)
            for position, op in enumerate(row))


def _verify_cells(schedule: Schedule) -> None:
    home: dict[tuple[int, int], int] = {}
    for cell, op in _cells(schedule):
        if op.kind not in KINDS or (op.message is None) != (op.kind not in ('send', 'recv')):
            raise ScheduleError(f'there is no operation {op.kind!r}; those are {", ".join(KINDS)}, '
                                f'and the last two need a message', schedule, cell)
        if not 0 <= op.stage < schedule.stages:
            raise ScheduleError(f'there is no stage {op.stage}: stages are numbered from 0 to '
                                f'{schedule.stages - 1}', schedule, cell)
        of_update = op.kind == 'U' or op.message is not None and op.message.what == SHARE
        if not -of_update <= op.micro_batch < schedule.micro_batches:
            raise ScheduleError(f'there is no micro-batch {op.micro_batch}: micro-batches are '
                                f'numbered from 0 to {schedule.micro_batches - 1}', schedule, cell)
        if not of_update and (there := home.setdefault(op[1:3], cell[0])) != cell[0]:
            raise ScheduleError(f'for micro-batch {op.micro_batch} stage {op.stage} is on device {there} and '
                                f'on device {cell[0]}: what its forward keeps can only be on one',
                                schedule, cell)


def _verify_counts(schedule: Schedule) -> None:
    where: dict[Op, Cell] = {}
    for cell, op in _cells(schedule):
        if op in where and op.kind != 'U':
            raise ScheduleError(f'stage {op.stage} runs {op} twice', schedule, cell)
        where[op] = cell
    for stage in range(schedule.stages):
        for i in range(schedule.micro_batches):
            runs = [op for kind in 'FBIW' if (op := Op(kind, stage, i)) in where]
            if ''.join(op.kind for op in runs) not in ('FB', 'FIW'):
                raise ScheduleError(
                    f'stage {stage} runs {" and ".join(map(str, runs)) or "nothing"} of '
                    f'micro-batch {i}: it needs F{i} and B{i}, or F{i}, I{i} and W{i}',
                    schedule, where[runs[-1]] if runs else None)


def _verify_order(schedule: Schedule) -> None:
    where = {op: cell for cell, op in _cells(schedule)}
    for op, cell in where.items():
        for first, second, why in ORDER:
            before = Op(first, op.stage, op.micro_batch)
            if op.kind == second and where.get(before, cell) > cell:
                raise ScheduleError(f'stage {op.stage} runs {op} before {before}: {why}', schedule,
                                    cell)


def _verify_messages(schedule: Schedule) -> None:
    """Those that `with_messages` adds, each once; a receive before what needs it, a send after."""
    where = {(cell[0], op): cell for cell, op in _cells(schedule)}
    targets = any(op.message and op.message.what == TARGET for op in schedule)
    whole = with_messages(schedule.select(lambda op: op.message is None), targets=targets)
    wanted = {(device, op) for device, row in enumerate(whole.rows) for op in row}
    for (device, op), cell in where.items():
        if op.message and (device, op) not in wanted:
            raise ScheduleError(f'stage {op.stage} has {op}, but nothing needs that message',
                                schedule, cell)
    for device, op in wanted - where.keys():
        raise ScheduleError(f'stage {op.stage} on device {device} lacks the message {op}', schedule)
    for device, row in enumerate(whole.rows):   # recv F send, recv B send, send recv U; others between them
        passes = [(device, op) for op in row if op.message or op.kind in ('F', 'B', 'I') or (
            op.kind == 'U' and op.stage not in whole.device_of)]
        for before, after in zip(passes, passes[1:]):
            if (before[1].kind == 'recv' or after[1].kind == 'send') and where[before] > where[after]:
                raise ScheduleError(f'stage {after[1].stage} runs {after[1]} before {before[1]}', schedule,
                                    where[after])


def _verify_updates(schedule: Schedule) -> None:
    any_made = any(op.kind == 'U' for op in schedule)
    for stage, devices in schedule.devices_of.items():
        for device in devices:
            _verify_updates_of(schedule, stage, device, any_made=any_made)
        numbers = [[op.micro_batch for op in schedule.rows[device] if op[:2] == ('U', stage)]
                   for device in devices]
        if any(others != numbers[0] for others in numbers):
            raise ScheduleError(f'stage {stage} lives on the devices {", ".join(map(str, devices))} and has '
                                f'other updates on one than on another', schedule)


def _verify_updates_of(schedule: Schedule, stage: int, device: int, *, any_made: bool) -> None:
    """Those of a stage on one of its devices."""
    made, since = 0, set[int]()
    for position, (kind, of, i, _) in enumerate(schedule.rows[device]):
        if of != stage:
            continue
        cell = device, position
        if kind in ('B', 'W'):
            since.add(i)
        if kind == 'U':
            batch = _batch(schedule, stage, made)
            own = {k for k in batch if schedule.device_at(stage, k) == device}
            if not batch:
                raise ScheduleError(f'stage {stage} updates its weights once too often', schedule, cell)
            if len(batch) < schedule.covered(stage) and stage not in schedule.device_of:
                raise ScheduleError(f'the update of stage {stage} is the mean of {schedule.covered(stage)} '
                                    f'micro-batches, a round of its devices, and there are {len(batch)}: '
                                    f'every round is full', schedule, cell)
            if since != own:
                raise ScheduleError(_explain_update(stage, since, own), schedule, cell)
            made += 1
            since.clear()
        if kind in ('B', 'I') and schedule.weights == 'latest' and schedule.version(stage, i) != made:
            raise ScheduleError(f"{kind}{i} of stage {stage} needs the weights that its forward took, "
                                f"and they have been updated since: weights='stashed' keeps them",
                                schedule, cell)
        if kind == 'F' and schedule.weights in ('double_buffered', 'vertical') and schedule.version(stage, i) > made:
            raise ScheduleError(f'F{i} takes weight version {schedule.version(stage, i)} of stage '
                                f'{stage}, which no update has made yet', schedule, cell)
    if since and (schedule.update_every or any_made):
        raise ScheduleError(f'stage {stage} never updates its weights with the gradient of '
                            f'micro-batch {min(since)}', schedule)


def _batch(schedule: Schedule, stage: int, made: int) -> range:
    """The micro-batches of the update that follows `made` others."""
    every = schedule.covered(stage)
    return range(made * every, min((made + 1) * every, schedule.micro_batches))


def _explain_update(stage: int, since: set[int], batch: set[int]) -> str:
    missing, early = sorted(batch - since), sorted(since - batch)
    if missing:
        return (f'stage {stage} updates its weights before the backward of micro-batch '
                f'{missing[0]}, whose gradient it should apply')
    return (f'stage {stage} updates its weights after the backward of micro-batch {early[0]}, '
            f'whose gradient belongs to the next update')
