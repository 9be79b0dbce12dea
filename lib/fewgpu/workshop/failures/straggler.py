"""Do all devices compute equally fast?

A virtual device with a smaller `pace` takes longer for the same operations; all others wait for it.
"""

from random import Random

from fewgpu.device import Device
from fewgpu.slow import slow_device, slow_link
from fewgpu.workshop.failures import Outcome
from fewgpu.workshop.failures.pipelines import DEVICES, PACE, costs, shortest, some_steps

SLOWER = 4.0
SIGN = ('all operations of one device are longer than the same ones of the others, which have gaps; messages are as '
        'quick as ever')
WHAT = ('Device {device} computed {times:g} times slower than the others, and the pipeline runs at the pace of its '
        'slowest.')
CHANGE = ('Look what else runs there (another job, a hot or throttled GPU); else give it fewer layers: a balance by '
          'measured time.')


def run(random: Random, *, fault: bool = True) -> Outcome:
    slow = random.randrange(DEVICES)
    devices = [Device('cpu', index=index, pace=PACE / (SLOWER if fault and index == slow else 1.0))
               for index in range(DEVICES)]
    steps = some_steps(devices)
    message = slow_device(steps, costs()) or slow_link(steps, costs())
    return Outcome(f'a pipeline of {DEVICES} stages', shortest(steps), message, {'device': slow, 'times': SLOWER})
