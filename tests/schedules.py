"""Random schedules of every kind, and what makes one right, without the checks of fewgpu."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from hypothesis import strategies as st

from fewgpu.schedule import (CHECKPOINTS, SCHEDULES, Op, Schedule, interleaved, two_bw,
                             with_messages, with_recompute, with_updates)

FLUSHING = ('gpipe', '1f1b', 'interleaved', 'zb-h1', 'zb-h2', 'gems', 'v-shape')


@st.composite
def schedules(draw, names: Iterable[str] = tuple(SCHEDULES), *, most: int = 5) -> Schedule:
    """One of `names`, of up to `most` devices, as its function returns it."""
    name, devices = draw(st.sampled_from(list(names))), draw(st.integers(1, most))
    if name == 'interleaved':
        return interleaved(devices, devices * draw(st.integers(1, 3)), v=draw(st.integers(1, 3)))
    if name == '2bw':
        every = devices + draw(st.integers(0, 2))
        return two_bw(devices, every * draw(st.integers(1, 4)), update_every=every)
    return SCHEDULES[name](devices, draw(st.integers(1, 2 * most)))


@st.composite
def dressed(draw, bare: st.SearchStrategy[Schedule] = schedules(),
            messages: bool | None = None) -> Schedule:
    """A schedule after some of the passes."""
    schedule = with_recompute(draw(bare), draw(st.sampled_from(CHECKPOINTS)))
    if draw(st.booleans()):
        schedule = with_updates(schedule)
    if draw(st.booleans()) if messages is None else messages:
        schedule = with_messages(schedule, targets=draw(st.booleans()))
    return schedule


def is_right(schedule: Schedule) -> bool:
    """Whether a schedule without messages is one of a training step: by counting, and by a search
    for a circle among its events."""
    homes = {(op.stage, op.micro_batch, device) for device, row in enumerate(schedule.rows) for op in row
             if op.kind != 'U'}
    every = [(stage, i) for stage in range(schedule.stages) for i in range(schedule.micro_batches)]
    counts = Counter(op for op in schedule if op.kind != 'U')
    if len(homes) != len(every) or {op[1:3] for op in counts} != set(every):
        return False
    if max(counts.values()) > 1 or any(
            [Op(kind, *key) in counts for kind in 'FBIW'] not in ([1, 1, 0, 0], [1, 0, 1, 1])
            for key in every):
        return False
    where = {op: position for row in schedule.rows for position, op in enumerate(row)}
    pairs = [(Op(a, *key), Op(b, *key)) for key in every
             for a, b in ('FR', 'FB', 'FI', 'RB', 'RI', 'IW')]
    return (all(where[a] < where[b] for a, b in pairs if a in where and b in where)
            and _updates_are_right(schedule, where)
            and not has_circle(_events(schedule)))


def held_by(schedule: Schedule, stage: int) -> list[int]:
    """The devices that have an operation of a stage."""
    return [device for device, row in enumerate(schedule.rows) if any(op.stage == stage for op in row)]


def _updates_are_right(schedule: Schedule, where: dict[Op, int]) -> bool:
    if schedule.update_every is None and not any(op.kind == 'U' for op in schedule):
        return True
    numbers = defaultdict(set)
    for stage in range(schedule.stages):
        for device in held_by(schedule, stage):
            if not _updates_of_are_right(schedule, where, stage, device):
                return False
            numbers[stage].add(tuple(op.micro_batch for op in schedule.rows[device]
                                     if op[:2] == ('U', stage)))
    return all(len(each) == 1 for each in numbers.values())


def _updates_of_are_right(schedule: Schedule, where: dict[Op, int], stage: int, device: int) -> bool:
    m, row = schedule.micro_batches, schedule.rows[device]
    every = schedule.update_every or m
    own = {op.micro_batch for op in row if (op.kind, op.stage) == ('F', stage)}
    updates = [at for at, op in enumerate(row) if (op.kind, op.stage) == ('U', stage)]
    done = {i: max(where.get(Op(kind, stage, i), -1) for kind in 'BW') for i in own}
    covered = every * len(held_by(schedule, stage)) if schedule.update_every else m
    if [{i for i in own if done[i] < at} for at in updates] != [
            own & set(range(k)) for k in range(covered, m + 1, covered)]:
        return False
    return not (schedule.weights == 'double_buffered' and any(
        sum(at < where[Op('F', stage, i)] for at in updates) < i // every - 1 for i in own))


def _events(schedule: Schedule) -> dict[Hashable, set[Hashable]]:
    """What must happen before what, if sends are paired: an operation is come to, done, and sent.

    That is the strictest order that all schedules keep; one for buffered sends is a part of it.
    """
    before: dict[Hashable, set[Hashable]] = defaultdict(set)
    last_sent: dict[Hashable, Op] = {}   # over each channel
    place = {op: device for device, row in enumerate(schedule.rows) for op in row}
    for device, row in enumerate(schedule.rows):
        previous = None
        for op in row:
            if op.kind == 'U':
                previous = _share(schedule, device, op, previous, before, last_sent)
                continue
            before['come', op] |= {previous} if previous else set()
            before['done', op] = {('come', op)} | {('sent', need) for need in needs(schedule, op)}
            before['sent', op] |= {('done', op)}
            previous = 'sent', op
            user = used_by(schedule, op)
            if user and place[user] != device:
                channel = op.kind == 'F', device, place[user]
                if channel in last_sent:
                    before['sent', op].add(('come', used_by(schedule, last_sent[channel])))
                last_sent[channel] = op
    return before


def _share(schedule: Schedule, device: int, op: Op, previous: Hashable, before: dict,
           last_sent: dict) -> Hashable:
    """An update, on one device: it gives to the others that hold the stage, and takes from them."""
    others = [other for other in held_by(schedule, op.stage) if other != device]
    for other in others:
        give = 'give', op, device, other
        before[give] |= {previous} if previous else set()
        if (device, other) in last_sent:
            before[give].add(('come', last_sent[device, other], other, device))
        last_sent[device, other] = op
        previous = give
    for other in others:
        come, take = ('come', op, device, other), ('take', op, device, other)
        before[come] |= {previous} if previous else set()
        before[take] = {come, ('give', op, other, device)}
        previous = take
    return previous


def needs(schedule: Schedule, op: Op) -> list[Op]:
    """The operation of another stage that sends what this one needs, if there is one."""
    side = {'F': -1, 'B': 1, 'I': 1}.get(op.kind, schedule.stages)
    return _of_stage(schedule, op, op.stage + side)


def used_by(schedule: Schedule, op: Op) -> Op | None:
    """The operation of another stage that needs what this one sends."""
    side = {'F': 1, 'B': -1, 'I': -1}.get(op.kind, schedule.stages)
    return next(iter(_of_stage(schedule, op, op.stage + side)), None)


def _of_stage(schedule: Schedule, op: Op, stage: int) -> list[Op]:
    kinds = 'F' if op.kind == 'F' else 'BI'
    return [other for row in schedule.rows for other in row
            if other.stage == stage and other.micro_batch == op.micro_batch
            and other.kind in kinds] if 0 <= stage < schedule.stages else []


def has_circle(before: dict[Hashable, set[Hashable]]) -> bool:
    """Whether events that each wait for others cannot all happen."""
    happened: set[Hashable] = set()
    while ready := [event for event, needed in before.items()
                    if event not in happened and needed <= happened]:
        happened.update(ready)
    return len(happened) < len(before)
