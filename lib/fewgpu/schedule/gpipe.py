"""GPipe (Huang et al. 2018, arXiv 1811.06965, section 2.3): all forwards, then all backwards."""

from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule

CHECKPOINTS = ('always', 'except_last', 'never')


def recomputed(checkpoint: str, micro_batches: int) -> range:
    """The micro-batches whose forward is recomputed before the backward.

    With 'except_last' the last one is exempt: its backward comes first, while its graph is still
    there, so to recompute it would save no memory.
    """
    return range({'always': micro_batches, 'except_last': micro_batches - 1,
                  'never': 0}[checkpoint])


def gpipe(stages: int, micro_batches: int, *, checkpoint: str = 'except_last') -> Schedule:
    """Every stage runs all forwards in order, then all backwards, the last micro-batch first.

        stages 2, micro-batches 3, 'except_last':   device 0 | F0 F1 F2 B2 R1 B1 R0 B0
                                                    device 1 | F0 F1 F2 B2 R1 B1 R0 B0

    Stage s lives on device s. The bubble is (n - 1) / (m + n - 1) of a step for n stages and m
    micro-batches of equal cost; a stage stashes m micro-batches at its peak.

    Raises ValueError if there is no stage, no micro-batch, or no such checkpoint mode.
    """
    if stages < 1 or micro_batches < 1:
        raise ValueError(f'a schedule needs at least one stage and one micro-batch, '
                         f'not {stages} and {micro_batches}')
    if checkpoint not in CHECKPOINTS:
        raise ValueError("checkpoint is not one of 'always', 'except_last', or 'never'")
    again = recomputed(checkpoint, micro_batches)

    def row(stage: int) -> tuple[Op, ...]:
        ops = [Op('F', stage, i) for i in range(micro_batches)]
        for i in reversed(range(micro_batches)):
            if i in again:
                ops.append(Op('R', stage, i))
            ops.append(Op('B', stage, i))
        return tuple(ops)

    return Schedule('gpipe', stages, micro_batches, tuple(row(s) for s in range(stages)))
