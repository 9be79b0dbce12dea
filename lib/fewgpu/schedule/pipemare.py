"""PipeMare (Yang et al. 2019, arXiv 1910.05124): no flush, and no old weights either."""

from dataclasses import replace

from fewgpu.schedule.one_f_one_b import one_f_one_b
from fewgpu.schedule.pipedream import updating
from fewgpu.schedule.schedule import Schedule


def pipemare(stages: int, micro_batches: int, *, update_every: int = 1) -> Schedule:
    """PipeDream's rows, with an update after every `update_every` backwards, and one weight version.

        stages 2, micro-batches 4, update_every 2:   device 0 | F0 F1 B0 F2 B1 U1 F3 B2 B3 U3
                                                     device 1 | F0 B0 F1 B1 U1 F2 B2 F3 B3 U3

    A forward takes the newest weights, and so does its backward, in which stage s of n has made
    (n - 1 - s) / update_every updates more, on the average; what PipeMare does about that is in
    `fewgpu.pipemare`.

    Raises ValueError if there is no stage or no micro-batch, or if the micro-batches are no multiple
    of `update_every`.
    """
    schedule = one_f_one_b(stages, micro_batches)
    if update_every < 1 or micro_batches % update_every:
        raise ValueError(f'pipemare updates after every {update_every} micro-batches, and {micro_batches} '
                         f'are no multiple of that: the last ones would never reach the weights')
    return replace(updating(schedule, update_every), name='pipemare', weights='corrected')
