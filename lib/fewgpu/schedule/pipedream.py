"""PipeDream (Harlap et al. 2018, arXiv 1806.03377, section 3): 1F1B that never flushes."""

from collections.abc import Iterator
from dataclasses import replace

from fewgpu.schedule.one_f_one_b import one_f_one_b
from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule


def pipedream(stages: int, micro_batches: int, *, vertical_sync: bool = False,
              stashing: bool = True) -> Schedule:
    """Every micro-batch is a mini-batch of its own, whose update follows its backward at once.

        stages 3, micro-batches 4:   device 0 | F0 F1 F2 B0 U0 F3 B1 U1 B2 U2 B3 U3
                                     device 1 | F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
                                     device 2 | F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3

    The first stage admits NOAM (the number of optimal active mini-batches) = n of them, one a stage,
    before its first backward; from then on no device ever idles, however many micro-batches come. Stage
    s keeps n - s weight versions: a backward takes the weights that its forward took ("weight
    stashing"), n - 1 - s updates ago:
    w(t+1) = w(t) - lr f'(w_1(t - n + 1), w_2(t - n + 2), ..., w_n(t)).

    With `vertical_sync` a micro-batch takes on every stage the version with which stage 0 admitted
    it: w(t+1) = w(t) - lr f'(w_1(t - n + 1), ..., w_n(t - n + 1)), and every stage keeps n. Without
    `stashing` none is kept: a backward takes the newest weights at its time, and the gradient is that
    of no single point.

    Raises ValueError if there is no stage or no micro-batch, or for vertical sync without stashing.
    """
    if vertical_sync and not stashing:
        raise ValueError('vertical sync takes older weights, which stay only with stashing=True')
    return replace(updating(one_f_one_b(stages, micro_batches), 1), name='pipedream',
                   weights='vertical' if vertical_sync else 'stashed' if stashing else 'unstashed')


def updating(schedule: Schedule, every: int) -> Schedule:
    """The schedule with an update after the backwards of every `every` micro-batches.

    An update has the number of the last micro-batch that it covers.
    """
    def expand(row: tuple[Op, ...]) -> Iterator[Op]:
        for op in row:
            yield op
            if op.kind == 'B' and (op.micro_batch + 1) % every == 0:
                yield Op('U', op.stage, op.micro_batch)

    return replace(schedule, rows=tuple(tuple(expand(row)) for row in schedule.rows),
                   update_every=every)
