"""A schedule in virtual time: when every operation would run, and what would live on its device.

The result is a `Timeline`, the type that a real run gives, so the same picture shows both. Imports
no torch.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate

from fewgpu.costs import Costs
from fewgpu.schedule import ACTIVATION, GRADIENT, SHARE, Message, Op, Schedule, skip_name, with_messages
from fewgpu.schedule.counts import versions_kept, versions_of
from fewgpu.schedule.garbage import no_garbage
from fewgpu.schedule.waits import verify_no_deadlock
from fewgpu.trace import WAITS, Span, Timeline

NEEDS = (('R', 'input'), ('B', 'stash'), ('I', 'stash'), ('W', 'for_W'))   # what of Costs is kept for it

Letter = tuple   # what is sent, to which stage, of which micro-batch (of a share also sender and receiver)


@no_garbage()
def simulate(schedule: Schedule, costs: Costs = Costs()) -> Timeline:
    """When every operation of a schedule would start and end, in seconds, and its live bytes.

    An operation starts as soon as its device is free and its message is there. A device that sends
    is not blocked: a message arrives `latency` after its bytes have left at `bandwidth`, and from
    one device to another one message leaves after the other. Between stages of one device they
    are free, and so is what the caller feeds. Before an update of a stage on several devices each
    sends its gradients to the others, and waits for theirs. A schedule with send and recv shows them in
    its timeline, and runs as it does without. Skips (see `with_skips`) are messages, too.

    A device holds the weight versions that are still to be used, and the newest; a forward adds the
    stash (of a micro-batch that is recomputed: the input, until R), a backward frees it. The graph
    that an operation builds and drops inside itself is not counted.

    Raises ScheduleError, a ValueError, if the devices wait for each other for ever, and ValueError
    if a cost is missing.
    """
    if schedule.skips and not any(op.message for op in schedule):
        timeline = simulate(with_messages(schedule), costs)
        return Timeline(tuple(tuple(span for span in row if not span.op.message) for row in timeline.rows),
                        timeline.names)
    rows = tuple(tuple(map(Span, row, *times, *_contents(schedule, row, costs)))
                 for row, times in zip(schedule.rows, _Run(schedule, costs).times()))
    return Timeline(rows, tuple(f'device {device}' for device in range(len(rows))))


def bubble_rate(timeline: Timeline) -> float:
    """The idle share of the device that is occupied longest, from its first start to its last end.

    So zero-bubble pipelines are rated (arXiv 2401.10241, section 4): where steps follow each other
    without a flush, a device that starts later ends later. `Timeline.bubble` is the idle share of
    all devices in one step, from the first start to the last end of any.
    """
    spans = [[span for span in row if span.op.kind not in WAITS] for row in timeline.rows]
    longest, work = max((row[-1].end - row[0].start, sum(span.seconds for span in row))
                        for row in spans if row)
    return 1.0 - work / (longest or 1.0)


def allowed_speed_up(micro_batches: int, stages: int) -> float:
    """What the bubble leaves of n devices: m n / (m + n - 1) (arXiv 1811.06965, section 2.3).

    It takes stages of equal cost for granted, messages for free, and does not know recompute.
    """
    return micro_batches * stages / (micro_batches + stages - 1)


class _Run:
    """All devices at once: each is a generator that yields the message it has to wait for."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self._schedule = schedule
        self._seconds: dict[str, dict[int, float]] = defaultdict(dict)
        for kind, stage in {op[:2] for op in schedule}:
            self._seconds[kind][stage] = 0.0 if kind in WAITS else costs.of(kind, stage)
        self._latency = costs.latency
        self._leaving = [costs.of('message', stage) / costs.bandwidth
                         for stage in range(schedule.stages - 1)]
        self._share = {stage: costs.of('share', stage) / costs.bandwidth
                       for stage, devices in schedule.devices_of.items() if len(devices) > 1}
        self._skips = {name: size / costs.bandwidth for name, size in costs.skips.items()}
        self._link_free: dict[tuple[int, int], float] = defaultdict(float)
        self._arrived: dict[Letter, float] = {}
        self._waiting: dict[Letter, int] = {}
        self._ready = list(range(len(schedule.rows)))

    def times(self) -> list[tuple[list[float], list[float]]]:
        """The starts and the ends of every row."""
        explicit = 'recv' in self._seconds
        times = [([], []) for _ in self._schedule.rows]
        devices = [self._device(device, row, *into, explicit=explicit)
                   for device, (row, into) in enumerate(zip(self._schedule.rows, times))]
        while self._ready:
            device = self._ready.pop()
            letter = next(devices[device], None)
            if letter is not None:
                self._waiting[letter] = device
        if self._waiting:
            verify_no_deadlock(self._schedule)
        return times

    def _device(self, device: int, row: Sequence[Op], starts: list[float], ends: list[float], *,
                explicit: bool) -> Iterator[Letter]:
        now, last = 0.0, self._schedule.stages - 1
        seconds, arrived, send = self._seconds, self._arrived, self._send
        for kind, stage, i, message in row:
            arrives = leaves = None
            if explicit:
                if kind == 'send' and 0 <= message.stage <= last:
                    leaves = _letter(message)
                elif kind == 'recv' and 0 <= message.source <= last:
                    arrives = _letter(message)
            elif kind == 'F':
                arrives = (ACTIVATION, stage, i) if stage > 0 else None
                leaves = (ACTIVATION, stage + 1, i) if stage < last else None
            elif kind == 'B' or kind == 'I':
                arrives = (GRADIENT, stage, i) if stage < last else None
                leaves = (GRADIENT, stage - 1, i) if stage > 0 else None
            elif kind == 'U' and stage in self._share:
                now = yield from self._exchange(device, stage, i, now)

            start = now
            if arrives is not None:
                if arrives not in arrived:
                    yield arrives
                now = max(now, arrived.pop(arrives))
                if kind != 'recv':   # that one is seen to wait
                    start = now
            now += seconds[kind][stage]
            starts.append(start)
            ends.append(now)
            if leaves is not None:
                send(device, stage, leaves, now)

    def _exchange(self, device: int, stage: int, i: int, now: float) -> Generator[Letter, None, float]:
        """Send to all others that hold the stage, then wait for them; the time when all is there."""
        others = self._schedule.replicas_beside(stage, device)
        for other in others:
            self._send(device, stage, (SHARE, stage, i, device, other), now)
        for other in others:
            if (letter := (SHARE, stage, i, other, device)) not in self._arrived:
                yield letter
            now = max(now, self._arrived.pop(letter))
        return now

    def _send(self, here: int, source: int, letter: Letter, now: float) -> None:
        what, stage, i, *devices = letter
        there = devices[1] if devices else self._schedule.device_at(stage, i)
        if here != there:
            if seconds := self._leaving_takes(what, min(source, stage), stage):
                now = self._link_free[here, there] = max(
                    now, self._link_free[here, there]) + seconds
            now += self._latency
        self._arrived[letter] = now
        if letter in self._waiting:
            self._ready.append(self._waiting.pop(letter))

    def _leaving_takes(self, what: str, boundary: int, stage: int) -> float:
        """Seconds that the bytes of a message take to leave."""
        if what == SHARE:
            return self._share[stage]
        name = skip_name(what)
        return self._leaving[boundary] if name is None else self._skips.get(name, 0.0)


def _letter(message: Message) -> Letter:
    what, _, stage, i, sender, receiver = message
    return (what, stage, i) if sender < 0 else (what, stage, i, sender, receiver)


def _contents(schedule: Schedule, row: Sequence[Op], costs: Costs) -> tuple[list, list]:
    """The live bytes after every operation of a row, and its weight version.

    What lives between two operations of a micro-batch is what the later one needs.
    """
    stages = {op.stage for op in row}
    weights = {stage: costs.of('weights', stage) for stage in stages}
    needs = {(kind, stage): costs.of(what, stage) for stage in stages for kind, what in NEEDS}
    change = [0] * len(row)
    coming: dict[tuple[int, int], float] = {}   # what the micro-batch's next operation needs
    for position in range(len(row) - 1, -1, -1):
        kind, stage, i, message = row[position]
        if message is None and kind != 'U':
            needed = needs.get((kind, stage), 0)
            change[position] = coming.get((stage, i), 0) - needed
            coming[stage, i] = needed
    alive = dict.fromkeys(stages, 1)
    for position, stage, count in versions_kept(schedule, row):
        change[position] = (count - alive[stage]) * weights[stage]
        alive[stage] = count
    at_first = sum(weights.values()) + sum(coming.values())   # a backward half begins with stashes
    return (list(accumulate(change, initial=at_first))[1:],
            list(versions_of(schedule, row)))
