"""A pipeline folded in the middle: each device holds a stage of the first half, and its mirror image.

The first and the last stage are on the same device, so what long skips connect is never far away: the
placement that a lecture calls aware of the model. Qi et al. 2024 (arXiv 2405.15362, "V-shaped
building blocks") fold pipelines for another reason, memory that is balanced. [Remembered]
"""

from math import inf

from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule, verify_sizes

_SECONDS = {'F': 1, 'B': 2}   # in the virtual time in which the order is found


def v_shape(stages: int, micro_batches: int) -> Schedule:
    """Stages 0, 1, ..., n - 1 on devices 0 to n - 1, and the next n on the same devices, backwards.

        stages 4, micro-batches 2 (device 0 holds stages 0 and 3, device 1 stages 1 and 2)

        device 0 | 0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1
        device 1 | 1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1

    With one micro-batch it is model parallelism. With more, every device takes, in virtual time where
    a backward is as long as two forwards, what it can start first: if there is a choice, the backward
    of its later stage, then forwards, then the other backward. (Of 30 such orders this one has the
    least bubble. In that time devices idle at most as long as under GPipe on two and four devices, and up to half
    as long again on five to eight; on three a seventh of the time, however many micro-batches there are.) At most
    `stages` micro-batches are on their way at a time, which is also what a stage stashes at most.

    Raises ValueError if there is no stage or no micro-batch, or if the stages are no even number.
    """
    verify_sizes(stages, micro_batches)
    if stages % 2:
        raise ValueError(f'v-shape puts two stages on each device: {stages} is no even number of stages')
    rows = _Play(stages, micro_batches).rows()
    return Schedule('v-shape', stages, micro_batches, tuple(map(tuple, rows)))


class _Play:
    """The devices in virtual time."""

    def __init__(self, stages: int, micro_batches: int) -> None:
        self._last, self._micro_batches = stages - 1, micro_batches
        self._ends: dict[Op, int] = {}   # of what has started
        self._next = {(kind, stage): 0 for kind in _SECONDS for stage in range(stages)}   # micro-batch

    def rows(self) -> list[list[Op]]:
        """What every device does, in order."""
        rows: list[list[Op]] = [[] for _ in range((self._last + 1) // 2)]
        free, now = [0] * len(rows), 0
        while len(self._ends) < len(self._next) * self._micro_batches:
            for device, row in enumerate(rows):
                op = self._choose(device, now) if free[device] <= now else None
                if op is not None:
                    free[device] = self._ends[op] = now + _SECONDS[op.kind]
                    self._next[op.kind, op.stage] += 1
                    row.append(op)
            now = min(end for end in free if end > now)
        return rows

    def _choose(self, device: int, now: int) -> Op | None:
        for kind, stage in (('B', self._last - device), ('F', self._last - device),
                            ('F', device), ('B', device)):
            op = Op(kind, stage, self._next[kind, stage])
            if op.micro_batch < self._micro_batches and self._may_start(op, now):
                return op
        return None

    def _may_start(self, op: Op, now: int) -> bool:
        """Is what it needs there? And has its neighbour taken what it got before: where sends wait for
        that (see `verify_no_deadlock`), the order must do so, too."""
        kind, stage, i, _ = op
        before, after = (stage - 1, stage + 1) if kind == 'F' else (stage + 1, stage - 1)
        needed = Op(kind, before, i) if 0 <= before <= self._last else Op('F', self._last, i)
        if op == Op('F', 0, i):   # as many on their way as there are stages
            arrived = i - self._next['B', 0] <= self._last
        else:
            arrived = self._ends.get(needed, inf) <= now
        return arrived and (not 0 <= after <= self._last or i == 0 or Op(kind, after, i - 1) in self._ends)
