"""PipeDream-2BW (Narayanan et al. 2020, arXiv 2006.09503, section 3.1): two weight versions."""

from dataclasses import replace

from fewgpu.schedule.one_f_one_b import one_f_one_b
from fewgpu.schedule.pipedream import updating
from fewgpu.schedule.schedule import Schedule


def two_bw(stages: int, micro_batches: int, *, update_every: int | None = None) -> Schedule:
    """1F1B without a flush, and an update after every `update_every` (default: stages) backwards.

        stages 2, micro-batches 4:   device 0 | F0 F1 B0 F2 B1 U1 F3 B2 B3 U3
                                     device 1 | F0 B0 F1 B1 U1 F2 B2 F3 B3 U3

    Micro-batch k, from 0, takes version max(k // update_every - 1, 0) in its forward and backward,
    on every stage: w(t+1) = w(t) - lr f'(w(t-1)). So a stage needs the newest
    two versions ("double-buffered weights"), where PipeDream's first stage needs one a stage.

    Raises ValueError if there is no stage or no micro-batch, if `update_every` is less than stages,
    or if the micro-batches are no multiple of it.
    """
    every = stages if update_every is None else update_every
    schedule = one_f_one_b(stages, micro_batches)
    if every < stages:
        raise ValueError(
            f'2bw updates after at least as many micro-batches as there are stages, {stages}, not '
            f'after {every}: micro-batches in flight would span more than two weight versions')
    if micro_batches % every:
        raise ValueError(f'2bw needs a multiple of {every} micro-batches, or the last ones never '
                         f'reach the weights, not {micro_batches}: take '
                         f'{-(-micro_batches // every) * every}')
    return replace(updating(schedule, every), name='2bw', weights='double_buffered')
