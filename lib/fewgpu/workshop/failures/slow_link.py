"""Do messages take as long as their bytes say?

A link of the pipeline has much less bandwidth than it is said to have, in both directions.
"""

from random import Random
from typing import Any

from fewgpu.device import Device
from fewgpu.link import Link
from fewgpu.slow import slow_device, slow_link
from fewgpu.workshop.failures import Outcome
from fewgpu.workshop.failures.pipelines import DEVICES, MESSAGE, PACE, costs, shortest, some_steps

LATENCY, BANDWIDTH = 2e-3, 1e7       # of links: seconds, bytes a second
SLOW = 0.020                         # seconds that a message takes on the slow one
TRIES = 4
SIGN = ('all devices compute equally fast, but between the end of an operation and the start of the next stage\'s '
        'there is a gap, always at the same two stages')
WHAT = ('The link between stages {link} and {next} had a bandwidth of {had:.3g} MB/s, not the {wanted:.3g} MB/s of all '
        'others.')
CHANGE = ('Look at that cable or switch, and who else sends there; or cut the model where activations are smaller, so '
          'that less crosses it.')


class Cables(Link):
    """A link of its own from each other device."""

    def __init__(self, links: dict[int, Link]) -> None:
        super().__init__(LATENCY, BANDWIDTH)
        self._links = links

    def wait(self, value: Any, sent: float, device: int) -> float:
        return self._links[device].wait(value, sent, device)


def run(random: Random, *, fault: bool = True) -> Outcome:
    slow = random.randrange(DEVICES - 1)

    def link(one: int, other: int) -> Link:
        is_slow = fault and {one, other} == {slow, slow + 1}
        return Link(LATENCY, MESSAGE / SLOW if is_slow else BANDWIDTH)

    devices = [Device('cpu', index=to, pace=PACE, link=Cables({source: link(source, to) for source in range(DEVICES)}))
               for to in range(DEVICES)]
    steps, expected, message = [], costs(latency=LATENCY, bandwidth=BANDWIDTH), ''
    for _ in range(TRIES if fault else 1):   # on a busy machine a receiver may be later than its message each time
        steps += some_steps(devices)
        if message := slow_link(steps, expected) or slow_device(steps, expected):
            break
    return Outcome(f'a pipeline of {DEVICES} stages', shortest(steps), message, {
        'link': slow, 'next': slow + 1, 'had': MESSAGE / SLOW / 1e6, 'wanted': BANDWIDTH / 1e6})
