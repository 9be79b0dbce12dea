"""For the grader of exercise 14: models on a disk, what becomes of a forward or backward, and the least time of it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from fewgpu.workshop.practice.disk import Handle, Machine, Misused


@dataclass(frozen=True)
class Scene:
    """A model on a disk: seconds to read and to compute each layer, and how many are read ahead."""

    reads: tuple[float, ...]
    computes: tuple[float, ...]
    ahead: int
    seed: int = 0

    @property
    def count(self) -> int:
        return len(self.reads)

    @property
    def last(self) -> list[int]:
        """What is in memory between forward and backward."""
        return list(range(max(self.count - self.ahead - 1, 0), self.count))

    def tensors(self) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        """Weights, input, and the gradient of the output."""
        generator = torch.Generator().manual_seed(self.seed)
        made = [torch.randn(shape, generator=generator, dtype=torch.float64)
                for shape in [(3, 3)] * self.count + [(2, 3)] * 2]
        return made[:-2], made[-2], made[-1]

    def machine(self, room: float) -> Machine:
        return Machine(self.tensors()[0], self.reads, self.computes, room)

    def __str__(self) -> str:
        return (f'{self.count} layer{"s" * (self.count > 1)}, ahead={self.ahead}; seconds to read '
                f'{listed(self.reads)}, to compute {listed(self.computes)}')


def listed(numbers: Sequence[float]) -> str:
    return ', '.join(f'{number:g}' for number in numbers)


def scenes(random: Random) -> list[Scene]:
    """Smallest first."""
    fixed = [((2,), (3,), 0), ((2, 2), (3, 3), 0), ((2, 2), (3, 3), 1), ((2, 2), (3, 3), 3), ((2, 2, 2), (3, 3, 3), 1),
             ((2, 2, 2, 2), (1, 5, 1, 1), 1), ((2, 2, 2, 2, 2), (1, 7, 1, 1, 1), 2), ((1, 4, 1, 4, 1, 4), (3,) * 6, 1),
             ((2,) * 7, (5, 1, 1, 5, 1, 1, 5), 2), ((1,) * 6, (2,) * 6, 0)]
    drawn = [(tuple(random.randrange(1, 7) for _ in range(n)), tuple(random.randrange(1, 7) for _ in range(n)), ahead)
             for n, ahead in ((5, 1), (8, 2), (9, 3), (12, 4), (6, 7))]
    return [Scene(*each, seed=k) for k, each in enumerate([*fixed, *drawn])]


@dataclass
class Went:
    """What became of a forward or a backward."""

    scene: Scene
    machine: Machine
    result: Any = None
    handles: Any = None         #: that the forward returned
    since: float = 0.0          #: when it began
    before: int = 0             #: events before it
    error: Exception | None = None

    @property
    def seconds(self) -> float:
        return self.machine.clock - self.since

    def numbers(self, kind: str) -> list[int]:
        return [event.number for event in self.machine.events[self.before:] if event.kind == kind]

    @property
    def kinds(self) -> str:
        """Its events, a letter each: r(ead), w(ait), F(orward), B(ackward), x (freed)."""
        letters = {'read': 'r', 'wait': 'w', 'forward': 'F', 'backward': 'B', 'free': 'x'}
        return ''.join(letters.get(event.kind, '') for event in self.machine.events[self.before:])


def run_forward(function: Callable, scene: Scene, room: float) -> Went:
    """Without an error, or with the one that came out."""
    went = Went(scene, scene.machine(room))
    try:
        answer = function(went.machine, scene.tensors()[1], scene.ahead)
    except Exception as error:
        went.error = error
        return went
    went.result, went.handles = answer if isinstance(answer, (tuple, list)) and len(answer) == 2 else (answer, None)
    return went


def run_backward(function: Callable, scene: Scene, room: float) -> Went:
    """After a forward that keeps all laws."""
    machine = scene.machine(room)
    handles = forward_by_law(machine, scene)
    went = Went(scene, machine, since=machine.clock, before=len(machine.events))
    try:
        went.result = function(machine, scene.tensors()[2], handles, scene.ahead)
    except Exception as error:
        went.error = error
    return went


def forward_by_law(machine: Machine, scene: Scene) -> dict[int, Handle]:
    """Each layer is read as soon as there is room. Returns the handles of the last ones."""
    x, handles = scene.tensors()[1], []
    for k in range(scene.count):
        handles += [machine.read(j) for j in range(len(handles), min(k + scene.ahead + 1, scene.count))]
        x = machine.forward(k, handles[k].wait(), x)
        if k not in scene.last:
            handles[k].free()
    return {k: handles[k] for k in scene.last}


def plain(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """By autograd: the output, and the gradient of the input."""
    weights, x, gradient = scene.tensors()
    y = x.requires_grad_()
    for weight in weights:
        y = torch.tanh(y @ weight.T)
    return y.detach(), torch.autograd.grad(y, x, gradient)[0]


def least(scene: Scene, ahead: int, order: Sequence[int], computes: Sequence[float],
          there: Collection[int] = ()) -> float:
    """The shortest time of these layers, one after the other: a recurrence over when each has been read and computed.

    A layer is read once the one before has been read and the one that is ahead + 1 before it has been computed.
    """
    read, done = [0.0], [0.0]   # when the first 0, 1, 2, ... layers have been read, and computed
    for position, k in enumerate(order):
        room = done[position - ahead] if position > ahead else 0.0
        read.append(read[-1] if k in there else max(read[-1], room) + scene.reads[k])
        done.append(max(done[-1], read[-1]) + computes[k])
    return done[-1]


def least_forward(scene: Scene, ahead: int | None = None) -> float:
    return least(scene, scene.ahead if ahead is None else ahead, range(scene.count), scene.computes)


def least_backward(scene: Scene, ahead: int | None = None) -> float:
    return least(scene, scene.ahead if ahead is None else ahead, range(scene.count - 1, -1, -1),
                 [2 * seconds for seconds in scene.computes], scene.last)


def is_misused(went: Went, *misconceptions: str) -> bool:
    return isinstance(went.error, Misused) and went.error.misconception in misconceptions
