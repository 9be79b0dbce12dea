"""The stages that this process holds: on threads all of them, on ranks those of one row."""

import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fewgpu.device import Device
from fewgpu.partition import place, split
from fewgpu.schedule import Schedule
from fewgpu.skip_routes import wrapped

if TYPE_CHECKING:
    from fewgpu.transport.ranks import Ranks

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
        self.partitions = {s: wrapped(partition, s, layout.skips) for s, partition in self.partitions.items()}

    def optimizers(self, make: MakeOptimizer | None) -> dict[int, torch.optim.Optimizer]:
        """One for every stage that has something to train."""
        trained = {s: [p for p in partition.parameters() if p.requires_grad]
                   for s, partition in self.partitions.items()}
        made = {s: make(iter(parameters)) for s, parameters in trained.items() if make and parameters}
        for optimizer in made.values():
            if not hasattr(optimizer, 'step') or not hasattr(optimizer, 'zero_grad'):
                raise TypeError(f'optimizer is to return an optimizer for the parameters that it is '
                                f'given, and returned {optimizer!r}')
            closure = inspect.signature(optimizer.step).parameters.get('closure')
            if closure is not None and closure.default is closure.empty:
                raise TypeError(f'{type(optimizer).__name__} computes the loss several times in a step, '
                                f'which a pipeline cannot: choose another optimizer')
        return made


def is_distributed(devices: Sequence[Any] | None) -> bool:
    """Does this process work with others, and is it to hold one row only?

    Under torchrun the ranks meet here, if the script has not let them meet before.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not (devices is None or len(devices) == 1):
        return False
    torchrun = {'RANK', 'MASTER_ADDR', 'TORCHELASTIC_RUN_ID'} <= {*os.environ}
    if torchrun and not distributed.is_initialized():
        if os.environ['MASTER_ADDR'] in ('localhost', '127.0.0.1') and sys.platform == 'linux':
            os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')   # not every host's name can be resolved
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ['LOCAL_RANK']) % torch.cuda.device_count())
        distributed.init_process_group('gloo', timeout=timedelta(days=7))   # Ranks wait themselves
    return distributed.is_initialized() and distributed.get_world_size() > 1


def device_of_rank(index: int) -> Device:
    """The current GPU, or a virtual device."""
    if torch.cuda.is_available():
        return Device(torch.device('cuda', torch.cuda.current_device()))
    return Device('cpu', index=index)


def verify_layout(layout: Schedule, ranks: int | None, *, replicas: bool, updates: bool) -> None:
    """Raises ValueError if a pipeline cannot train by this schedule: on so many ranks (None: threads), beside
    replicas, and with an optimizer or without."""
    if layout.update_every and (replicas or not updates):
        raise ValueError(f'{layout.name} updates the weights within a step: '
                         + ('replicas need a schedule that flushes, as 1f1b' if replicas else
                            'pass optimizer=...'))
    if ranks and len(layout.rows) != ranks:
        raise ValueError(f'the schedule {layout.name} of {layout.stages} stages needs '
                         f'{len(layout.rows)} ranks, a row a rank, and there are {ranks}')


def verify_alike(ranks: 'Ranks', module: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError on a rank whose layers or other arguments are not those of the first one."""
    layers = (f'{name} {tuple(parameter.shape)}' for name, parameter in module.named_parameters())
    mine = {what: f'{value}' for what, value in arguments.items()} | {'layers': ', '.join(layers)}
    first = ranks.tell(0, mine)
    for what, value in mine.items():
        if value != first[what]:
            error = ValueError(f'{what}: {value[:200]} on rank {ranks.members[ranks.index]}, '
                               f'{first[what][:200]} on rank {ranks.members[0]}: every rank makes '
                               f'the same Pipeline')
            ranks.abort(error)
            raise error
