"""GPipe (Huang et al. 2018, arXiv 1811.06965, section 2.3): all forwards, then all backwards."""

from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule, verify_sizes


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Every stage runs all forwards in order, then all backwards, the last micro-batch first.

        stages 2, micro-batches 3:   device 0 | F0 F1 F2 B2 B1 B0
                                     device 1 | F0 F1 F2 B2 B1 B0

    F2 is the forward of micro-batch 2 and B2 its backward (all letters: fewgpu.schedule.op). Stage s
    lives on device s. The bubble, the share of a step in which devices are idle, is
    (n - 1) / (m + n - 1) for n stages and m micro-batches of equal cost. A stage stashes m
    micro-batches at its peak: it keeps what their backwards will need.

    Raises ValueError if there is no stage or no micro-batch.
    """
    verify_sizes(stages, micro_batches)
    there = range(micro_batches)
    return Schedule('gpipe', stages, micro_batches, tuple(
        (*(Op('F', stage, i) for i in there), *(Op('B', stage, i) for i in reversed(there)))
        for stage in range(stages)))
