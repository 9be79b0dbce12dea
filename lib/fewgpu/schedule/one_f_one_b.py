"""1F1B, also called PipeDream-Flush (Narayanan et al. 2020, arXiv 2006.09503, section 2.2)."""

from collections.abc import Iterator, Sequence

from fewgpu.schedule.garbage import no_garbage
from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule, verify_sizes


@no_garbage()
def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Warm up with a few forwards, then one forward and one backward in turn, then drain.

        stages 3, micro-batches 4:   device 0 | F0 F1 F2 B0 F3 B1 B2 B3
                                     device 1 | F0 F1 B0 F2 B1 F3 B2 B3
                                     device 2 | F0 B0 F1 B1 F2 B2 F3 B3

    The bubble is GPipe's, but stage s of n stashes only min(m, n - s) of m micro-batches: it starts
    with n - 1 - s forwards, as many as there are stages behind it.

    Raises ValueError if there is no stage or no micro-batch.
    """
    verify_sizes(stages, micro_batches)
    return Schedule('1f1b', stages, micro_batches, tuple(
        tuple(in_turn(passes('F', stage, micro_batches), passes('B', stage, micro_batches),
                      warm_up=stages - 1 - stage))
        for stage in range(stages)))


def passes(kind: str, stage: int, micro_batches: int) -> list[Op]:
    """That operation of a stage on every micro-batch, in order."""
    return [Op(kind, stage, i) for i in range(micro_batches)]


def in_turn(forwards: Sequence[Op], backwards: Sequence[Op], *, warm_up: int) -> Iterator[Op]:
    """The first `warm_up` forwards, one forward and one backward in turn, the other backwards."""
    yield from forwards[:warm_up]
    for pair in zip(forwards[warm_up:], backwards):
        yield from pair
    yield from backwards[len(forwards[warm_up:]):]
