"""The stages that this process holds: on threads all of them, on ranks those of one row."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from fewgpu.device import Device
from fewgpu.partition import place, split
from fewgpu.schedule import Schedule

MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


class Held:
    """Rows of a layout, on a device each: partitions and devices by the number of the stage.

    `module` has the layers under their names, so its state_dict has the keys of the plain model.
    """

    def __init__(self, module: nn.Sequential, balance: list[int], layout: Schedule,
                 rows: Sequence[int], devices: Sequence[Any] | None) -> None:
        """`devices` are one a row; None: the GPUs, or virtual CPU devices."""
        partitions = split(module, balance)
        self.partitions = {s: partitions[s] for s, row in sorted(layout.device_of.items())
                           if row in rows}
        self.devices = place([nn.ModuleList(partition for s, partition in self.partitions.items()
                                            if layout.device_of[s] == row) for row in rows], devices)
        self.device_of = {s: self.devices[rows.index(layout.device_of[s])] for s in self.partitions}
        self.module = nn.Sequential(OrderedDict(
            named for partition in self.partitions.values() for named in partition.named_children()))
        self.module.training = module.training

    def optimizers(self, make: MakeOptimizer | None) -> dict[int, torch.optim.Optimizer]:
        """One for every stage that has something to train."""
        trained = {s: [p for p in partition.parameters() if p.requires_grad]
                   for s, partition in self.partitions.items()}
        return {s: make(iter(parameters)) for s, parameters in trained.items() if make and parameters}


def is_distributed(devices: Sequence[Any] | None) -> bool:
    """Does this process work with others, and is it to hold one row only?"""
    distributed = torch.distributed
    return (distributed.is_available() and distributed.is_initialized()
            and distributed.get_world_size() > 1 and (devices is None or len(devices) == 1))


def device_of_rank(index: int) -> Device:
    """The current GPU (torchrun's scripts set it), or a virtual device."""
    if torch.cuda.is_available():
        return Device(torch.device('cuda', torch.cuda.current_device()))
    return Device('cpu', index=index)
