"""What the machine that a lesson runs on lets us expect."""

import torch

from fewgpu.device import Device, get_devices
from fewgpu.workshop.machine import cores, two_core_efficiency


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
        #: how fast each of n cores is while all compute, compared with alone; None on GPUs
        self.efficiency = None if self.on_gpus else two_core_efficiency(n) if n > 1 else 1.0
        self.steady = not self.shared and (self.on_gpus or n <= cores() and self.efficiency > 0.7)

    @property
    def doubt(self) -> str:
        """'' where times can be trusted, else a remark for behind a finding."""
        return '' if self.steady else ' (but devices are busy or shared)'

    def __repr__(self) -> str:
        names = ', '.join(device.name for device in self.devices)
        gpus = torch.cuda.device_count() if self.on_gpus else 0
        found = {0: 'no GPU', 1: 'one GPU'}.get(gpus, f'{gpus} GPUs') + f', {cores()} cores'
        if self.shared:
            said = 'Stages share a GPU: they fit what one would not, but are no faster.'
        elif self.on_gpus:
            said = 'Each has a GPU of its own.'
        else:
            said = f'Working at the same time, each device is {self.efficiency:.0%} as fast as alone.'
        return f'{names} (this machine: {found}).\n{said}'
