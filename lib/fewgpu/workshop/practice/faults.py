"""The record of one training step of a pipeline, in virtual time, with whatever is wrong with it.

    record = run(Setting(balance=(2, 2), chunks=4, schedule='gpipe', loss_scale=1 / 4), machine)
    record.spans[1]       # what device 1 has run, and when
    record.error          # '' if the step came to its end

A `Machine` has its faults in its numbers: a device that is slow, a link that is, too little memory. A `Setting` has
others: a balance, a loss scale, rows of a schedule that wait for each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from numbers import Integral, Real
from typing import NamedTuple

from fewgpu.schedule import Op, Schedule, gpipe, one_f_one_b
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.practice.plain import listed, number
from fewgpu.workshop.practice.rows import as_far_as_it_comes, broken
from fewgpu.workshop.practice.timeline import timeline

STEPS = 4   # training steps whose losses a record has
LIKE = {'gpipe': gpipe, '1f1b': one_f_one_b}


class Layer(NamedTuple):
    """What a profile says of a layer, for a whole mini-batch; a micro-batch takes its share, 1 / chunks of it."""

    seconds: float   #: of a forward; a backward takes twice as long
    output: int      #: bytes of its output (and of the gradient that comes back)
    stash: int       #: bytes that a forward keeps for its backward


class Span(NamedTuple):
    """An operation that has ended: 'F' or 'B', of which micro-batch, and when."""

    kind: str
    micro_batch: int
    start: float
    end: float


class Message(NamedTuple):
    """Bytes that were on their way over a link from `start` to `end`."""

    start: float
    end: float
    bytes: float


@dataclass(frozen=True)
class Setting:
    """What the user of a pipeline chooses. Stage d is on device d."""

    balance: tuple[int, ...]   #: layers of each stage
    chunks: int                #: micro-batches of the mini-batch
    schedule: str | tuple[tuple[str, ...], ...]   #: 'gpipe', '1f1b', or rows written by hand: (('F0', 'B0'), ...)
    loss_scale: float          #: the mean loss of each micro-batch is multiplied by it before its backward


@dataclass(frozen=True)
class Machine:
    """What the user is given."""

    layers: tuple[Layer, ...]
    slowness: tuple[float, ...]          #: of each device: how many times longer than in the profile it takes
    seconds_a_byte: tuple[float, ...]    #: of each link; link k is between devices k and k + 1
    memory: tuple[float, ...]            #: bytes that each device has for stashes
    rows: int = 16                       #: of the mini-batch


@dataclass(frozen=True)
class Record:
    """What came of a run."""

    setting: Setting
    layers: tuple[Layer, ...]                #: the profile
    rows: tuple[tuple[str, ...], ...]        #: of each device: the operations that it should run, in order
    spans: tuple[tuple[Span, ...], ...]      #: of each device: those that it has run
    messages: tuple[tuple[Message, ...], ...]   #: of each link
    peak: tuple[float, ...]                  #: of each device: bytes at its peak, those that did not fit included
    memory: tuple[float, ...]                #: of each device: bytes that it has
    error: str                               #: '' if the step came to its end
    losses: tuple[float, ...]                #: of the first training steps; none where the first did not end
    norms: tuple[float, ...]                 #: norms of their gradients
    plain_norms: tuple[float, ...]           #: the same as one device alone has them, with the same weights and rows

    @property
    def seconds(self) -> float:
        """Of the step, as far as it came."""
        return max((span.end for row in self.spans for span in row), default=0.0)


def run(setting: Setting, machine: Machine) -> Record:
    """One step. Raises ValueError where there can be no such setting."""
    setting = plain_setting(setting, machine)
    rows = _rows(setting)
    done, error, until = _times(setting, machine, rows), '', inf
    for device, row in enumerate(done):
        for span in row:
            if span.live > machine.memory[device] and span.end < until:
                until = span.end
                error = (f'OutOfMemoryError: CUDA out of memory. Tried to allocate '
                         f'{_shares(setting, machine.layers, "stash")[device]:.0f} bytes.')
    peaks = tuple(max((span.live for span in row if span.end <= until), default=0.0) for row in done)
    spans = tuple(tuple(Span(span.op.kind, span.op.micro_batch, span.start, span.end)
                        for span in row if span.end < until) for row in done)
    if not error and any(len(row) < len(wanted) for row, wanted in zip(spans, rows)):
        error = 'TimeoutError: no device has done anything for 30 seconds.'
    messages = tuple(tuple(each for each in link if each.end <= until)
                     for link in _messages(setting, machine, spans))
    return Record(setting, machine.layers, rows, spans, messages, peaks, machine.memory, error,
                  *((), (), ()) if error else _training(setting))


def predict(record: Record, setting: Setting, slowness: Sequence[float], seconds_a_byte: Sequence[float]) -> Record:
    """What another setting would give, if devices and links are as slow as you say: a record, without a real run.

    `slowness` has a number for each device, `seconds_a_byte` one for each link. Raises ValueError where there can be no
    such setting.
    """
    return run(setting, Machine(record.layers, tuple(slowness), tuple(seconds_a_byte), record.memory))


def balances(layers: int, devices: int) -> Iterator[tuple[int, ...]]:
    """All balances of so many layers: every device has at least one."""
    for cuts in combinations(range(1, layers), devices - 1):
        yield tuple(end - start for start, end in zip((0, *cuts), (*cuts, layers)))


def plain_setting(setting: Setting, machine: Machine) -> Setting:
    """The same with plain numbers and tuples. Raises ValueError with what is wrong with it."""
    if not isinstance(setting, Setting):
        raise ValueError(f'a setting is a Setting, not {type(setting).__name__}')
    balance, chunks, scale, devices = listed(setting.balance), number(setting.chunks), number(setting.loss_scale), len(
        machine.slowness)
    if not isinstance(balance, list) or not all(isinstance(each, Integral) and each > 0 for each in balance):
        raise ValueError(f'a balance has whole numbers of at least one layer a stage, not {balance}')
    if len(balance) != devices or sum(balance) != len(machine.layers):
        raise ValueError(f'the balance {balance} is not of {len(machine.layers)} layers on {devices} devices')
    if not isinstance(chunks, Integral) or not 1 <= chunks <= machine.rows:
        raise ValueError(f'chunks is a whole number from 1 to {machine.rows}, not {chunks}')
    if not isinstance(scale, Real):
        raise ValueError(f'loss_scale is a number, not {scale}')
    schedule = setting.schedule
    if isinstance(schedule, str):
        if schedule not in LIKE:
            raise ValueError(f"a schedule is 'gpipe', '1f1b' or rows, not {schedule!r}")
    else:
        schedule = tuple(tuple(row) for row in schedule)
        wrong = broken((devices, chunks), [list(row) for row in schedule])
        if wrong and not wrong.startswith('It never ends'):
            raise ValueError(f'such rows are no training step: {wrong}')
    return replace(setting, balance=tuple(balance), chunks=chunks, loss_scale=scale, schedule=schedule)


def stages(balance: Sequence[int], layers: Sequence[Layer]) -> list[Sequence[Layer]]:
    """The layers of each stage."""
    ends = [sum(balance[:stage + 1]) for stage in range(len(balance))]
    return [layers[end - count:end] for end, count in zip(ends, balance)]


def _shares(setting: Setting, layers: Sequence[Layer], what: str) -> list[float]:
    """Of each stage, what its layers have together of `what`, for a micro-batch."""
    return [sum(getattr(layer, what) for layer in stage) / setting.chunks for stage in stages(setting.balance, layers)]


def _outputs(setting: Setting, layers: Sequence[Layer]) -> list[float]:
    """Bytes of the last layer of each stage, for a micro-batch."""
    return [stage[-1].output / setting.chunks for stage in stages(setting.balance, layers)]


def _rows(setting: Setting) -> tuple[tuple[str, ...], ...]:
    if not isinstance(setting.schedule, str):
        return setting.schedule
    return tuple(tuple(f'{op.kind}{op.micro_batch}' for op in row)
                 for row in LIKE[setting.schedule](len(setting.balance), setting.chunks).rows)


def _times(setting: Setting, machine: Machine, rows: Sequence[Sequence[str]]) -> tuple[tuple, ...]:
    """The simulator's spans of all that can run."""
    able = rows
    if not isinstance(setting.schedule, str):
        able = [row[:len(done)] for row, done in zip(rows, as_far_as_it_comes(rows)[0].rows)]
    ops = tuple(tuple(Op(cell[0], stage, int(cell[1:])) for cell in row) for stage, row in enumerate(able))
    forwards = [slow * seconds for slow, seconds in zip(machine.slowness, _shares(setting, machine.layers, 'seconds'))]
    messages = [size * pace for size, pace in zip(_outputs(setting, machine.layers), machine.seconds_a_byte)]
    costs = Costs(F=forwards, B=[2 * seconds for seconds in forwards], message=messages, bandwidth=1.0,
                  stash=_shares(setting, machine.layers, 'stash'))
    return simulate(Schedule('own', len(rows), setting.chunks, ops), costs).rows


def _messages(setting: Setting, machine: Machine, spans: Sequence[Sequence[Span]]) -> list[list[Message]]:
    """What went over every link, in both directions: one after the other in each."""
    sizes, links = _outputs(setting, machine.layers), [[] for _ in machine.seconds_a_byte]
    for device, row in enumerate(spans):
        for kind, link in (('F', device), ('B', device - 1)):
            free = 0.0
            for span in row:
                if span.kind == kind and 0 <= link < len(links):
                    start = max(free, span.end)
                    free = start + sizes[link] * machine.seconds_a_byte[link]
                    links[link].append(Message(start, free, sizes[link]))
    return [sorted(link) for link in links]


def _training(setting: Setting) -> tuple[tuple[float, ...], ...]:
    """Losses, norms of the gradients, and the right norms, of steps down a parabola."""
    wrong, weight, losses, plain = setting.loss_scale * setting.chunks, 2.0, [], []
    for _ in range(STEPS):
        losses.append(0.5 * weight ** 2)
        plain.append(abs(weight))
        weight -= 0.6 * wrong * weight
    return tuple(losses), tuple(norm * abs(wrong) for norm in plain), tuple(plain)


def picture(record: Record) -> str:
    """The record in virtual time: digits are forwards, letters backwards (a of micro-batch 0), = is a message."""
    until = record.seconds
    rows = []
    for device, spans in enumerate(record.spans):
        rows.append((f'device {device}', [(span.start, span.end, (
            '0123456789' if span.kind == 'F' else 'abcdefghij')[span.micro_batch % 10]) for span in spans]))
        if device < len(record.messages):
            rows.append((f'  link {device}', [(each.start, min(each.end, until), '=')
                                              for each in record.messages[device] if each.start < until]))
    return timeline(rows, round(until, 3))
