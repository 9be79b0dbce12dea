"""A schedule: one ordered row of operations a device."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from fewgpu.schedule.op import Message, Op, Skip


WEIGHTS = ('latest', 'stashed', 'vertical', 'double_buffered', 'unstashed', 'corrected')


@dataclass(frozen=True)
class Schedule:
    """What every device does in one step, in order.

    `rows[d]` are the operations of device d: an operation runs where its row has it. A device may hold
    several stages, and a stage may live on several devices, its replicas, each of which runs some of
    the micro-batches; they update together. Printed, a schedule is a grid with a row a device:

        device 0 | F0 F1 B1 R0 B0
        device 1 | F0 F1 B1 R0 B0

    (GPipe's, in which micro-batch 0 is recomputed and the last one need not be). Where devices hold
    several stages, an operation is printed with its stage: 2F0.

    `weights` is the rule by which an operation chooses its weight version (the number of updates
    of its stage that the version has seen):

        latest           the newest one; all operations of a step see the same, for the updates come
                         after all backwards (the schedule "flushes")
        stashed          a forward takes the newest one, its backward the same again (PipeDream)
        vertical         a micro-batch takes, on every stage, the one that was stage 0's newest when
                         it was admitted there (PipeDream's vertical sync, arXiv 1806.03377)
        double_buffered  micro-batch k, counted from 0, takes max(k // update_every - 1, 0) for
                         both (PipeDream-2BW, arXiv 2006.09503)
        unstashed        every operation takes the newest one at its own time: no version is kept, and
                         a backward meets other weights than its forward did
        corrected        as unstashed, but a backward corrects the weights towards those of its forward
                         (PipeMare, see `fewgpu.pipemare`)
    """

    name: str
    stages: int
    micro_batches: int
    rows: tuple[tuple[Op, ...], ...]
    weights: str = 'latest'
    #: Micro-batches an update; None: one update, of all. Of a stage on r devices it is so many on each, a
    #: round of r times as many, and the update is the mean of theirs.
    update_every: int | None = None
    skips: tuple[Skip, ...] = ()   #: what travels beside the activations (see `with_skips`)

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise ValueError(f'there is no rule {self.weights!r} for weights: choose from '
                             f'{", ".join(WEIGHTS)}')
        if self.weights == 'double_buffered' and not self.update_every:
            raise ValueError("weights='double_buffered' needs update_every, the micro-batches an update")

    def __iter__(self) -> Iterator[Op]:
        return (op for row in self.rows for op in row)

    @cached_property
    def device_of(self) -> dict[int, int]:
        """The device of each stage that lives on one."""
        return {stage: devices[0] for stage, devices in self.devices_of.items() if len(devices) == 1}

    @cached_property
    def devices_of(self) -> dict[int, tuple[int, ...]]:
        """The devices that hold each stage, in order."""
        devices: dict[int, dict[int, None]] = {}
        for device, row in enumerate(self.rows):
            for stage in {op.stage for op in row}:
                devices.setdefault(stage, {})[device] = None
        return {stage: tuple(devices[stage]) for stage in sorted(devices)}

    @cached_property
    def _placed(self) -> dict[tuple[int, int], int]:
        """Of the stages that live on several devices."""
        return {(op.stage, op.micro_batch): device for device, row in enumerate(self.rows) for op in row
                if op.kind != 'U' and op.message is None and op.stage not in self.device_of}

    def device_at(self, stage: int, micro_batch: int) -> int | None:
        """The device that runs a stage on a micro-batch; None if there is none (at the caller)."""
        device = self.device_of.get(stage)
        return self._placed.get((stage, micro_batch)) if device is None else device

    def sender_of(self, message: Message) -> int | None:
        """The device that sends a message; None: the caller."""
        return (self.device_at(message.source, message.micro_batch) if message.sender < 0
                else message.sender)

    def receiver_of(self, message: Message) -> int | None:
        """The device that a message is for; None: the caller."""
        return (self.device_at(message.stage, message.micro_batch) if message.receiver < 0
                else message.receiver)

    def replicas_beside(self, stage: int, device: int) -> list[int]:
        """The other devices that hold a stage."""
        return [other for other in self.devices_of[stage] if other != device]

    def covered(self, stage: int) -> int:
        """How many micro-batches an update of a stage covers, on all its devices."""
        return self.update_every * len(self.devices_of[stage]) if self.update_every else self.micro_batches

    @cached_property
    def _followed_by(self) -> dict[tuple[int, int], set[str]]:
        kinds: dict[tuple[int, int], set[str]] = {}
        for op in self:
            kinds.setdefault((op.stage, op.micro_batch), set()).add(op.kind)
        return kinds

    def keeps(self, stage: int, micro_batch: int) -> str:
        """What the forward must leave behind for the backward: 'graph', 'input' or 'nothing'.

        It follows from the schedule: a forward that is recomputed keeps its input only, one
        without a backward keeps nothing.
        """
        kinds = self._followed_by.get((stage, micro_batch), set())
        if 'R' in kinds:
            return 'input'
        return 'graph' if kinds & {'B', 'I'} else 'nothing'

    def select(self, wanted: Callable[[Op], bool]) -> 'Schedule':
        """The schedule with only the operations that are `wanted`; the order stays."""
        return replace(self, rows=tuple(tuple(op for op in row if wanted(op)) for row in self.rows))

    def halves(self) -> tuple['Schedule', 'Schedule']:
        """The forward half, and all the rest: between them the caller computes the loss."""
        return self.select(lambda op: op.kind == 'F'), self.select(lambda op: op.kind != 'F')

    def version(self, stage: int, micro_batch: int, kind: str = 'F') -> int:
        """The weight version of the forward of a micro-batch, and of what follows it; only where no
        version is kept does it depend on the `kind` of the operation."""
        if kind != 'F' and self.weights in ('unstashed', 'corrected'):
            return self._newest[kind, stage, micro_batch]
        if self.weights == 'double_buffered':
            return max(micro_batch // self.update_every - 1, 0)
        return self._newest['F', 0 if self.weights == 'vertical' else stage, micro_batch]

    @cached_property
    def _newest(self) -> dict[tuple[str, int, int], int]:
        """How many updates a stage has made when it comes to an operation."""
        newest: dict[tuple[str, int, int], int] = {}
        for row in self.rows:
            updates = [0] * self.stages
            for kind, stage, i, message in row:
                if kind == 'U':
                    updates[stage] += 1
                elif message is None:
                    newest[kind, stage, i] = updates[stage]
        return newest

    def needed_after(self, stage: int, updates: int) -> frozenset[int]:
        """The weight versions that a stage must keep when it updates its weights, having made
        `updates` updates before on that device: those that operations to come will still use."""
        return self._needed[stage, updates]

    @cached_property
    def _needed(self) -> dict[tuple[int, int], frozenset[int]]:
        needed: dict[tuple[int, int], frozenset[int]] = {}
        for row in self.rows:
            left = Counter(op.stage for op in row if op.kind == 'U')
            later: dict[int, set[int]] = {op.stage: set() for op in row}
            for op in reversed(row):
                if op.kind == 'U':
                    left[op.stage] -= 1
                    key = op.stage, left[op.stage]   # of any of the devices that hold the stage
                    needed[key] = needed.get(key, frozenset()) | {
                        version for version in later[op.stage] if version <= left[op.stage]}
                elif op.message is None:
                    later[op.stage].add(self.version(op.stage, op.micro_batch, op.kind))
        return needed

    def __str__(self) -> str:
        from fewgpu.schedule.grid import grid   # it also marks a cell, for errors
        return grid(self)


def verify_sizes(stages: int, micro_batches: int) -> None:
    """Raises ValueError if there is no stage or no micro-batch."""
    if stages < 1 or micro_batches < 1:
        raise ValueError(f'a schedule needs at least one stage and one micro-batch, '
                         f'not {stages} and {micro_batches}')
