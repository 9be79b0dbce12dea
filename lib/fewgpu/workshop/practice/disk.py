"""A disk to practise with, and a machine that computes with the weights on it, on a clock of their own.

    machine = Machine(weights, reads=[2, 2, 2], computes=[3, 3, 3], room=2)
    handle = machine.read(0)                    # starts; returns at once
    y = machine.forward(0, handle.wait(), x)    # the clock goes on: to the end of the read, and then by 3 s
    handle.free()
    machine.clock, machine.picture()

The disk reads one part after the other, in the order in which they were asked for, while the machine computes. Memory
has room for so many parts: one that is asked for takes its place at once and keeps it until it is freed.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fewgpu.workshop.practice.misuse import Misuse
from fewgpu.workshop.practice.timeline import timeline

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'
Part = torch.Tensor | tuple[torch.Tensor, ...]


class Misused(Misuse):
    """A way not to use the disk; `misconception` is its stable id, which graders explain."""

    def __init__(self, misconception: str, detail: str) -> None:
        RuntimeError.__init__(self, detail)
        self.misconception, self.detail = misconception, detail


class Event(NamedTuple):
    """What happened: 'read', 'wait', 'free', 'forward', 'backward' or 'write'; of which part; from when to when."""

    kind: str
    number: int
    start: float
    end: float


class Handle:
    """A part that is being read, or is in memory."""

    def __init__(self, disk: 'Disk', number: int, ready: float, value: Part) -> None:
        self.number = number
        self._disk, self._ready, self._value, self._freed = disk, ready, value, False

    def wait(self) -> Part:
        """Wait until the part has been read, and return it."""
        if self._freed:
            raise Misused('after-free', f'{self._disk.name(self.number)} has been freed before it is waited for.')
        self._disk.note('wait', self.number, self._disk.clock, max(self._disk.clock, self._ready))
        return self._value

    def free(self) -> None:
        """Give the memory back. What was in it is lost (here nan)."""
        if self._freed:
            raise Misused('freed-twice', f'{self._disk.name(self.number)} has been freed before.')
        if self._disk.clock < self._ready:
            raise Misused('freed-in-flight', f'The disk has not read {self._disk.name(self.number, begins=False)} yet.')
        self._freed = True
        self._disk.held.remove(self)
        self._disk.note('free', self.number, self._disk.clock, self._disk.clock)
        with torch.no_grad():
            for tensor in self._value if isinstance(self._value, tuple) else (self._value,):
                tensor.fill_(math.nan)
        self._value = None


class Disk:
    """Numbered parts on a disk; `reads` are the seconds that it takes to read each, `room` how many memory holds."""

    part = 'tile'

    def __init__(self, parts: Sequence[Part], reads: Sequence[float] | None = None, room: float = math.inf) -> None:
        self.clock = 0.0                        #: virtual seconds
        self.held: list[Handle] = []            #: what is in memory, or on the way to it
        self.peak = 0                           #: the most that were in memory
        self.events: list[Event] = []
        self.written: dict[int, tuple] = {}     #: what came back, by the number of the part
        self._parts, self._reads, self._room = list(parts), list(reads or [1.0] * len(parts)), room
        self._free = 0.0                        # when the disk has read all that was asked for

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self._parts)

    def name(self, number: int, begins: bool = True) -> str:
        return f'{self.part.capitalize() if begins else self.part} {number}'

    def note(self, kind: str, number: int, start: float, end: float) -> None:
        self.events.append(Event(kind, number, start, end))
        if kind != 'read':
            self.clock = end

    def numbers(self, kind: str) -> list[int]:
        """Of which parts that has happened, in order."""
        return [event.number for event in self.events if event.kind == kind]

    def read(self, number: int) -> Handle:
        """Start to read a part. Returns at once."""
        number = self._known(number)
        if len(self.held) >= self._room:
            there = ', '.join(str(handle.number) for handle in self.held)
            raise Misused('no-room', f'There is no room for {self.name(number, begins=False)}: memory has room for '
                                     f'{self._room}, and there {"are" if len(self.held) > 1 else "is"} {there}.')
        start = max(self.clock, self._free)
        self._free = start + self._reads[number]
        value = self._parts[number]
        copied = tuple(tensor.clone() for tensor in value) if isinstance(value, tuple) else value.clone()
        handle = Handle(self, number, self._free, copied)
        self.held.append(handle)
        self.peak = max(self.peak, len(self.held))
        self.note('read', number, start, self._free)
        return handle

    def write(self, number: int, *tensors: torch.Tensor) -> None:
        """Give something back for a part, once: its gradients. It takes no time, and no memory afterwards."""
        number = self._known(number)
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            types = ', '.join(type(each).__name__ for each in tensors)
            raise TypeError(f'write takes a number and tensors, not {types}')
        if number in self.written:
            raise Misused('written-twice', f'The gradients of {self.name(number, begins=False)} come a second time.')
        self.written[number] = tuple(tensor.detach().clone() for tensor in tensors)
        self.note('write', number, self.clock, self.clock)

    def _known(self, number: Any) -> int:
        if isinstance(number, bool) or int(number) != number:
            raise TypeError(f'a {self.part} has a whole number, not {number!r}')
        if not 0 <= number < self.count:
            raise Misused('no-such-part', f'{self.name(int(number))} is asked for; there are 0 to {self.count - 1}.')
        return int(number)

    def picture(self, since: float = 0.0) -> str:
        """What the disk and the machine have done, in virtual time; a digit is the number of the part."""
        def spans(*kinds: str) -> list[tuple[float, float, str]]:
            return [(event.start - since, event.end - since, DIGITS[event.number % 36]) for event in self.events
                    if event.kind in kinds and event.end > max(event.start, since)]
        until = max((event.end for event in self.events), default=0.0) - since
        return timeline([('disk', spans('read')), ('device', spans('forward', 'backward'))], until)


class Machine(Disk):
    """A machine with a disk on which the weights of its layers are: layer k gives tanh(x W^T).

    `computes` are the seconds of every forward; a backward takes twice as long.
    """

    part = 'layer'

    def __init__(self, weights: Sequence[torch.Tensor], reads: Sequence[float], computes: Sequence[float],
                 room: float = math.inf) -> None:
        super().__init__(weights, reads, room)
        self._computes = list(computes)
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.given: list[torch.Tensor] = []     #: what forwards and backwards were given, in order

    def forward(self, k: int, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The output of layer k. What its backward needs of x is kept elsewhere."""
        self._verify(k, weights)
        self.given.append(x)
        self.note('forward', k, self.clock, self.clock + self._computes[k])
        with torch.no_grad():
            y = torch.tanh(x @ weights.T)
        self._kept[k] = x, y
        return y

    def backward(self, k: int, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """From the gradient of the output of layer k, that of its input. The one of the weights is written."""
        self._verify(k, weights)
        if k not in self._kept:
            raise Misused('no-forward', f'Layer {k} has no forward whose backward this could be.')
        x, y = self._kept.pop(k)
        self.given.append(gradient)
        self.note('backward', k, self.clock, self.clock + 2 * self._computes[k])
        with torch.no_grad():
            inner = gradient * (1 - y * y)
            self.write(k, inner.T @ x)
            return inner @ weights

    def _verify(self, k: int, weights: Any) -> None:
        k = self._known(k)
        if isinstance(weights, Handle):
            raise Misused('no-wait', f'Layer {k} is given a handle: its wait() returns the weights.')
        if not isinstance(weights, torch.Tensor):
            raise TypeError(f'layer {k} computes with a tensor, not {type(weights).__name__}')
        if bool(weights.isnan().any()):
            raise Misused('after-free', f'Layer {k} computes with weights that have been freed.')
        for other, own in enumerate(self._parts):
            if other != k and torch.equal(own, weights) and not torch.equal(self._parts[k], weights):
                raise Misused('wrong-weights', f'Layer {k} computes with the weights of layer {other}.')
