"""PipeDream (Harlap et al. 2018, arXiv 1806.03377, section 3): 1F1B that never flushes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm

from fewgpu.schedule.one_f_one_b import in_turn
from fewgpu.schedule.op import Op
from fewgpu.schedule.schedule import Schedule, verify_sizes


def pipedream(stages: int, micro_batches: int, *, replicas: Sequence[int] | None = None, vertical_sync: bool = False,
              stashing: bool = True) -> Schedule:
    """Every micro-batch is a mini-batch of its own, whose update follows its backward at once.

        stages 3, micro-batches 4:   device 0 | F0 F1 F2 B0 U0 F3 B1 U1 B2 U2 B3 U3
                                     device 1 | F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
                                     device 2 | F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3

    The first stage admits NOAM (the number of optimal active mini-batches) = n of them, one a stage, before
    its first backward; from then on no device ever idles, however many micro-batches come. Stage s keeps
    n - s weight versions: a backward takes the weights that its forward took ("weight stashing"),
    n - 1 - s updates ago:
    w(t+1) = w(t) - lr f'(w_1(t - n + 1), w_2(t - n + 2), ..., w_n(t)).

    With `vertical_sync` a micro-batch takes on every stage the version with which stage 0 admitted
    it: w(t+1) = w(t) - lr f'(w_1(t - n + 1), ..., w_n(t - n + 1)), and every stage keeps n. Without
    `stashing` none is kept: a backward takes the newest weights at its time, and the gradient is that
    of no single point.

    With `replicas` stage s lives on replicas[s] devices, which are numbered stage by stage:

        replicas (2, 1), micro-batches 4:   device 0 | 0F0 0F2 0B0 0U1 0B2 0U3
                                            device 1 | 0F1 0F3 0B1 0U1 0B3 0U3
                                            device 2 | 1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2 1F3 1B3 1U3

    Of r replicas mini-batch i goes, forward and backward, to number i mod r ("round-robin"), and
    after a round of r mini-batches all make the same update, by the mean over all their rows. Each replica
    of a stage admits ceil(devices from this stage on / r) mini-batches: for the first stage that is
    NOAM, and it is how many versions the stage keeps. Nobody waits for ever, whatever the numbers: what
    an operation of mini-batch i waits for are forwards, and updates by mini-batches before i. (That the
    replicas of a stage wait for each other after each round can cost time. Where replicas make all stages
    equally fast, two stages r-1 still never idle, says the simulator, but 2-1-1 idles a third of the time.)

    Raises TypeError if `replicas` is one number for all, ValueError if there is no stage or no micro-batch,
    if `replicas` are not one number of at least 1 a stage, if a round would not be full, for vertical sync
    without stashing, and for vertical sync of stages with replicas, which count their updates differently.
    """
    verify_sizes(stages, micro_batches)
    if vertical_sync and not stashing:
        raise ValueError('vertical sync takes older weights, which stay only with stashing=True')
    if isinstance(replicas, int):
        raise TypeError(f'replicas are a number of devices for each stage, as ({replicas}, 1), not one number for all')
    counts = (1,) * stages if replicas is None else tuple(replicas)
    _verify_replicas(counts, stages, micro_batches)
    if vertical_sync and len({*counts}) > 1:
        raise ValueError(f'vertical sync counts updates, of which stages with replicas {counts} make different '
                         f'numbers: give every stage as many')
    rows = tuple(tuple(_row(stage, number, counts, micro_batches))
                 for stage, count in enumerate(counts) for number in range(count))
    return Schedule('pipedream', stages, micro_batches, rows, update_every=1,
                    weights='vertical' if vertical_sync else 'stashed' if stashing else 'unstashed')


def _verify_replicas(counts: Sequence[int], stages: int, micro_batches: int) -> None:
    if len(counts) != stages or min(counts) < 1:
        raise ValueError(f'replicas are a number of devices, at least 1, for each of the {stages} stages, '
                         f'not {counts}')
    if micro_batches % (whole := lcm(*counts)):
        raise ValueError(f'pipedream with replicas {counts} needs a multiple of {whole} micro-batches, so '
                         f'that every round is full, not {micro_batches}: take '
                         f'{-(-micro_batches // whole) * whole}')


def _row(stage: int, number: int, counts: Sequence[int], micro_batches: int) -> Iterator[Op]:
    """Of one replica of a stage. An update has the number of the last micro-batch of its round."""
    count = counts[stage]
    forwards, backwards = ([Op(kind, stage, i) for i in range(number, micro_batches, count)] for kind in 'FB')
    for op in in_turn(forwards, backwards, warm_up=-(-sum(counts[stage + 1:]) // count)):
        yield op
        if op.kind == 'B':
            yield Op('U', stage, op.micro_batch - number + count - 1)


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
