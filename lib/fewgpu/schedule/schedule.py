"""A schedule: one ordered row of operations a device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from fewgpu.schedule.op import Op


@dataclass(frozen=True)
class Schedule:
    """What every device does in one step, in order.

    `rows[d]` are the operations of device d. A device may hold several stages; a stage lives on
    one device. Printed, a schedule is a grid with a row a device:

        device 0 | F0 F1 R0 B0 B1
        device 1 | F0 F1 B1 R0 B0
    """

    name: str
    stages: int
    micro_batches: int
    rows: tuple[tuple[Op, ...], ...]

    def __iter__(self) -> Iterator[Op]:
        return (op for row in self.rows for op in row)

    @cached_property
    def device_of(self) -> dict[int, int]:
        """The device that holds each stage."""
        return {op.stage: device for device, row in enumerate(self.rows) for op in row}

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

    def __str__(self) -> str:
        width = max((len(str(op)) for op in self), default=1)
        return '\n'.join(f'device {device} | ' + ' '.join(f'{op!s:<{width}}' for op in row).rstrip()
                         for device, row in enumerate(self.rows))
