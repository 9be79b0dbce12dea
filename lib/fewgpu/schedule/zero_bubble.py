"""Zero-bubble schedules ZB-H1 and ZB-H2 (Qi et al. 2023, arXiv 2401.10241, section 2)."""

from collections.abc import Iterator

from fewgpu.schedule.one_f_one_b import in_turn, passes
from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule, verify_sizes

VARIANTS = {'H1': 1, 'H2': 2}


def zero_bubble(stages: int, micro_batches: int, *, variant: str = 'H1') -> Schedule:
    """1F1B with the backward in two: I, which the stage before waits for, and W, which fills gaps.

        stages 3, micro-batches 4, H1:   device 0 | F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
                                         device 1 | F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
                                         device 2 | F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

    Stage s of n puts W of a micro-batch off by s micro-batches. For times f, i and w of F, I and W
    the bubble of each stage is (n - 1)(f + i - w), where 1F1B has (n - 1)(f + i + w), at the same
    peak of stashes. H2 warms up with, and puts off, twice as much: (n - 1)(f + i - 2w), none if all
    are equal, for up to 2n - 1 stashes.

    Raises ValueError if there is no stage or no micro-batch, or no such variant.
    """
    verify_sizes(stages, micro_batches)
    if variant not in VARIANTS:
        raise ValueError(f"variant is 'H1' or 'H2', not {variant!r}")
    depth = VARIANTS[variant]

    def row(stage: int) -> Iterator[Op]:
        weights = iter(passes('W', stage, micro_batches))
        for op in in_turn(passes('F', stage, micro_batches), passes('I', stage, micro_batches),
                          warm_up=depth * (stages - 1 - stage)):
            yield op
            if op.kind == 'I' and op.micro_batch >= depth * stage:
                yield next(weights)
        yield from weights

    return Schedule(f'zb-{variant.lower()}', stages, micro_batches,
                    tuple(tuple(row(stage)) for stage in range(stages)))
