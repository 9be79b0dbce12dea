"""One rank's part of a pipeline, run by hand through the interpreter: for tests of ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fewgpu.context import Context
from fewgpu.device import get_devices
from fewgpu.run import run
from fewgpu.schedule import Op, Schedule, activation, gradient, with_messages, with_updates
from fewgpu.stage import Stage
from fewgpu.transport import Mailbox
from fewgpu.transport.ranks import Ranks


def rows(*texts: str) -> tuple[tuple[Op, ...], ...]:
    """'F0 B0', 'F0 B0' -> the rows of two stages."""
    return tuple(tuple(Op(name[0], stage, int(name[1:])) for name in text.split())
                 for stage, text in enumerate(texts))


BY_HAND = {2: ('F0 F1 B1 F2 B0 B2', 'F1 F0 B1 B0 F2 B2'),
           3: ('F0 F1 F2 B0 B1 B2', 'F0 F1 B0 F2 B1 B2', 'F0 B0 F1 B1 F2 B2')}


def by_hand(size: int) -> Schedule:
    return with_messages(with_updates(Schedule('by hand', size, 3, rows(*BY_HAND[size]))))


def batches(steps: int) -> list[list[torch.Tensor]]:
    """Micro-batches whose sizes change from step to step: some small, some too large for a head."""
    generator = torch.Generator().manual_seed(3)
    return [[torch.rand(1 + 700 * (step % 3 == 1) + i, 3, generator=generator) for i in range(3)]
            for step in range(steps)]


def network(stages: int) -> list[nn.Module]:
    """The same layers on every rank, with integers, tuples and None at the boundaries."""
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(3, 3), Boundary(j)) for j in range(stages)]


class Boundary(nn.Module):
    """Hands on whatever may cross: a tensor with a gradient, a mask, None, a number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> Any:
        return {'x': x.tanh(), 'mask': (x > 0, None), 'number': self.number}


class Take(nn.Module):
    """What takes a `Boundary`'s output apart."""

    def forward(self, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        return value['x'] * value['mask'][0] + value['number']


def run_rows(held: Sequence[int], mailbox: Mailbox, schedule: Schedule, layers: Sequence[nn.Module],
             inputs: Sequence[Any]) -> list[Any]:
    """Run the rows `held` of a schedule with messages; the outputs, if the last stage is there."""
    devices = dict(zip(held, get_devices(len(held), kind='cpu')))
    context = Context.capture(devices.values())
    stages = [{j: Stage(j, nn.Sequential(Take(), layers[j]), devices[row]).begin(
        context, schedule.micro_batches) for j in {op.stage for op in schedule.rows[row]}} for row in held]
    there = {j for each in stages for j in each}
    last = schedule.stages - 1
    feed = {activation(0, i): x for i, x in enumerate(inputs)} if 0 in there else {}
    collect = []
    if last in there:
        feed |= {gradient(last, i): [torch.ones_like(x), None, None, None]
                 for i, x in enumerate(inputs)}
        collect = [activation(last + 1, i) for i in range(schedule.micro_batches)]
    values, _ = run(schedule, held, [*devices.values()], stages, feed, collect, whole=schedule,
                    mailbox=mailbox)
    return values


def attempt(ranks: Ranks, schedule: Schedule, layers: Sequence[nn.Module],
            inputs: Sequence[Any]) -> Any:
    """One step of this rank; the error, as text, if there is one."""
    try:
        return run_rows([ranks.index], ranks.mailbox(schedule), schedule, layers, inputs)
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def gradients(layers: Sequence[nn.Module]) -> list[list[torch.Tensor | None]]:
    return [[parameter.grad for parameter in layer.parameters()] for layer in layers]
