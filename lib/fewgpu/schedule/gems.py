"""GEMS (Jain et al. 2020, SC'20): a second replica of the model, laid over the same devices backwards."""

from collections.abc import Iterator

from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule, verify_sizes


def gems(stages: int, micro_batches: int) -> Schedule:
    """Stage s lives on device s and, for the second replica, on device n - 1 - s. Micro-batches go to the
    replicas in turn, and a device runs the forward of one when the backward of the other has left it.

        stages 2, micro-batches 2 (stages in front):   device 0 | 0F0 0B0 1F1 1B1 0U  1U
                                                       device 1 | 1F0 1B0 0F1 0B1 0U  1U

    So a device stashes one micro-batch at a time, and holds two stages' weights (where n is odd, the
    middle one only its own). The forward of the second replica fills what the backward of the first
    leaves idle: for times f and b of F and B a step takes n f + (m - 1) max(n b + f, n f + b) + n b, so
    that with b = 2 f and many micro-batches (n - 1) / (n + 1/2) of it is idle. At the end the replicas
    add up their gradients, and update together.

    The mechanism is remembered, not read: two micro-batches are what the paper calls GEMS-MAST, more
    of them before the update GEMS-MASTER.

    Raises ValueError if there is no stage or no micro-batch.
    """
    verify_sizes(stages, micro_batches)

    def row(device: int) -> Iterator[Op]:
        held = device, stages - 1 - device   # of the first and of the second replica
        for i in range(micro_batches):
            yield from (Op(kind, held[i % 2], i) for kind in 'FB')
        yield from (Op('U', stage) for stage in sorted({*held}))   # in one order on all devices

    return Schedule('gems', stages, micro_batches, tuple(tuple(row(device)) for device in range(stages)))
