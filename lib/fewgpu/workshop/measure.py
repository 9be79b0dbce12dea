"""Training steps that a lesson measures in a cell."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fewgpu.device import Device
from fewgpu.meter import Memory
from fewgpu.trace import Timeline
from fewgpu.workshop.watch import Watch


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


def gradient_of(model: nn.Module) -> torch.Tensor:
    """The gradients of all parameters that have one, as one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
