"""Pipeline schedules as data: what every device does, in which order. Imports no torch.

A schedule is made by a pure function (`gpipe`, ...), and the same rows of operations are drawn,
simulated, checked and executed by the interpreter in `fewgpu.run`.
"""

from fewgpu.schedule.gpipe import CHECKPOINTS, gpipe, recomputed
from fewgpu.schedule.messages import with_messages
from fewgpu.schedule.op import ACTIVATION, GRADIENT, Message, Op
from fewgpu.schedule.schedule import Schedule

__all__ = ['ACTIVATION', 'CHECKPOINTS', 'GRADIENT', 'Message', 'Op', 'Schedule', 'gpipe',
           'recomputed', 'with_messages']
