"""What the machine that a lesson runs on lets us expect, and training steps measured on it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fewgpu.device import Device, get_devices
from fewgpu.meter import Memory
from fewgpu.trace import Timeline
from fewgpu.workshop.machine import cores, two_core_efficiency
from fewgpu.workshop.watch import Watch


class Here:
    """n devices of this machine, and whether speed can be measured on them.

        here = Here(2)          # in a notebook's cell it says what was found
        here.devices            # GPUs where there are any, else virtual devices of one core
        here.steady             # may conclusions be drawn from times?
    """

    def __init__(self, n: int = 2) -> None:
        self.devices: list[Device] = get_devices(n)
        self.on_gpus = not self.devices[0].is_virtual
        self.shared = len({device.name for device in self.devices}) < n   #: a GPU holds several stages
        #: how fast each of n cores is while all compute, compared with alone
        self.efficiency = 1.0 if self.on_gpus or n == 1 else two_core_efficiency(n)
        self.steady = not self.shared and (self.on_gpus or n <= cores()) and self.efficiency > 0.7

    @property
    def doubt(self) -> str:
        """'' where times can be trusted, else a remark for behind a finding."""
        return '' if self.steady else ' (but devices are busy or shared)'

    def __repr__(self) -> str:
        names = ', '.join(device.name for device in self.devices)
        gpus = torch.cuda.device_count() if self.on_gpus else 0
        found = {0: 'no GPU', 1: 'one GPU'}.get(gpus, f'{gpus} GPUs') + f', {cores()} cores'
        said = ('Stages share a GPU: they fit what one would not, but are no faster.' if self.shared else
                f'Working at the same time, each device is {self.efficiency:.0%} as fast as alone.')
        return f'{names} (this machine: {found}).\n{said}'


class Measured(NamedTuple):
    """What some training steps showed."""

    speed: float                #: samples a second
    memory: list[Memory]        #: of every device
    timeline: Timeline | None   #: of the last step; None for a plain model
    busy: list[float] | None    #: share of the time that each device computed

    def __repr__(self) -> str:
        return '\n'.join([f'{self.speed:.1f} samples/sec', *map(str, self.memory)])


def measure(model: nn.Module, x: torch.Tensor, y: torch.Tensor, devices: Sequence[Device], *,
            steps: int = 3) -> Measured:
    """A few training steps of SGD with momentum on (x, y), as a script would do them.

    `model` is a pipeline, or a plain model, which goes to the first of `devices`. The first two
    steps count memory, the others measure speed.
    """
    if not hasattr(model, 'stage_devices'):
        model = model.to(devices[0].torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    watch = Watch(model, devices, optimizer)
    x, y = x.to(watch.stage_devices[0].torch), y.to(watch.stage_devices[-1].torch)
    for _ in range(steps):
        with watch.step(len(x)):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return Measured(watch.samples_per_second, watch.memory(), watch.timeline, watch.busy_share)
