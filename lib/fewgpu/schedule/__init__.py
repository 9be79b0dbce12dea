"""Pipeline schedules as data: what every device does, in which order. Imports no torch.

A schedule is made by a pure function (`gpipe`, ...), and the same rows of operations are drawn,
simulated, checked and executed by the interpreter in `fewgpu.run`.
"""

from collections.abc import Callable
from functools import partial

from fewgpu.schedule.checks import check
from fewgpu.schedule.counts import staleness, stashes, versions, versions_alive
from fewgpu.schedule.gems import gems
from fewgpu.schedule.gpipe import gpipe
from fewgpu.schedule.grid import ScheduleError, grid
from fewgpu.schedule.interleaved import interleaved
from fewgpu.schedule.one_f_one_b import one_f_one_b
from fewgpu.schedule.op import (ACTIVATION, GRADIENT, SHARE, TARGET, Message, Op, Skip, activation,
                                gradient, share, skip_name, target)
from fewgpu.schedule.passes import CHECKPOINTS, with_messages, with_recompute, with_skips, with_updates
from fewgpu.schedule.pipedream import pipedream
from fewgpu.schedule.pipemare import pipemare
from fewgpu.schedule.schedule import Schedule
from fewgpu.schedule.two_bw import two_bw
from fewgpu.schedule.v_shape import v_shape
from fewgpu.schedule.zero_bubble import zero_bubble

SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    'gpipe': gpipe,
    '1f1b': one_f_one_b,
    'interleaved': interleaved,
    'zb-h1': partial(zero_bubble, variant='H1'),
    'zb-h2': partial(zero_bubble, variant='H2'),
    'pipedream': pipedream,
    '2bw': two_bw,
    'pipemare': pipemare,
    'gems': gems,
    'v-shape': lambda devices, micro_batches: v_shape(2 * devices, micro_batches),
}
"""Every schedule by its name: a function of how many devices and micro-batches."""

__all__ = ['ACTIVATION', 'CHECKPOINTS', 'GRADIENT', 'SCHEDULES', 'SHARE', 'TARGET', 'Message', 'Op',
           'Schedule', 'ScheduleError', 'Skip', 'activation', 'check', 'gems', 'gpipe', 'gradient', 'grid',
           'interleaved', 'one_f_one_b', 'pipedream', 'pipemare', 'share', 'skip_name', 'staleness', 'stashes',
           'target', 'two_bw', 'v_shape', 'versions', 'versions_alive', 'with_messages', 'with_recompute',
           'with_skips', 'with_updates',
           'zero_bubble']
