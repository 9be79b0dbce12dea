"""The network between practice ranks, in virtual time.

A message of b bytes takes latency + b / bandwidth seconds. One at a time leaves a rank, in the order in which they were
sent, and one at a time comes in at a rank: so what all ranks send to one of them takes as long as if they came one
after the other. (Those b / bandwidth seconds it occupies both ends; the latency it does not.)

Reductions have a channel of their own, on which they go one after the other.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

import torch

from fewgpu.workshop.practice.misuse import Misuse


@dataclass
class Message:
    """One message, and its times in virtual seconds."""

    source: int
    to: int
    bytes: int
    sent: float
    leaves: float | None = None    #: not earlier than `sent`: the wire may be busy
    arrives: float | None = None
    received: bool = False
    tensor: torch.Tensor | None = None

    def take(self) -> torch.Tensor:
        """Its tensor, received."""
        tensor, self.tensor, self.received = self.tensor, None, True
        return tensor


@dataclass
class Reduction:
    """One all-reduce by all ranks, and its times in virtual seconds."""

    number: int
    size: int                                                 #: numbers in the tensor
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)   #: by rank
    waited: set[int] = field(default_factory=set)
    begins: float | None = None                               #: when all have started it, and the channel is free
    ends: float | None = None

    def total(self) -> torch.Tensor:
        """The sum, in the order of the ranks: the same bits everywhere."""
        return sum(self.tensors[rank] for rank in sorted(self.tensors))

    def missing(self, size: int) -> str:
        """What those who wait for its end wait for."""
        late = ', '.join(f'rank {rank}' for rank in range(size) if rank not in self.tensors)
        return f'reduction {self.number} (counted from 0), not started by {late}'


class ChangedInFlight(Misuse):
    """A tensor has been changed while it was reduced; `sent` is what was in it when its reduction started."""

    def __init__(self, sent: torch.Tensor) -> None:
        numbers = f'{sent.numel()} number{"s" if sent.numel() != 1 else ""}'
        super().__init__('changed-in-flight', f'The tensor of {numbers} has been changed between start_all_reduce and '
                                              f'wait.')
        self.sent = sent


class Wires:
    """What is on its way between `size` ranks."""

    def __init__(self, latency: float, bandwidth: float, size: int) -> None:
        self._latency, self._bandwidth, self._size = latency, bandwidth, size
        self._queues: list[deque[Message]] = [deque() for _ in range(size)]   # by source
        self._out_free, self._in_free = [0.0] * size, [0.0] * size
        self._channel_free = 0.0
        self.arrived: dict[tuple[int, int], deque[Message]] = defaultdict(deque)   #: by source and destination
        self.messages: list[Message] = []
        self.reductions: list[Reduction] = []

    def send(self, source: int, to: int, tensor: torch.Tensor, now: float) -> None:
        """Put a message into the queue of its sender."""
        message = Message(source, to, tensor.numel() * tensor.element_size(), now, tensor=tensor)
        self.messages.append(message)
        self._queues[source].append(message)

    def advance(self, until: float) -> bool:
        """Let the next message leave, if it does so before `until`: was there one?

        Nobody sends anything before `until` any more: otherwise that might be the next.
        """
        heads = [(self._leaves(queue[0]), queue[0].sent, source) for source, queue in enumerate(self._queues) if queue]
        if not heads or min(heads)[0] >= until:
            return False
        leaves, _, source = min(heads)
        message = self._queues[source].popleft()
        message.leaves, through = leaves, leaves + message.bytes / self._bandwidth
        message.arrives = through + self._latency
        self._out_free[source] = self._in_free[message.to] = through
        self.arrived[source, message.to].append(message)
        return True

    def _leaves(self, message: Message) -> float:
        return max(message.sent, self._out_free[message.source], self._in_free[message.to])

    def reduce(self, number: int, rank: int, tensor: torch.Tensor, now: float) -> Reduction:
        """Rank `rank` starts its reduction `number`; with the last rank that does, its times are known.

        Raises `Misuse` if the ranks' tensors do not go together.
        """
        if number == len(self.reductions):
            self.reductions.append(Reduction(number, tensor.numel()))
        reduction = self.reductions[number]
        for other, theirs in reduction.tensors.items():
            if (theirs.shape, theirs.dtype) != (tensor.shape, tensor.dtype):
                raise Misuse('different-reductions',
                             f'Reduction {number} (counted from 0) has shape {tuple(theirs.shape)} on rank {other} and '
                             f'{tuple(tensor.shape)} on rank {rank} ({theirs.dtype}, {tensor.dtype}).')
        reduction.tensors[rank], reduction.started[rank] = tensor.clone(), now
        if len(reduction.tensors) == self._size:
            reduction.begins = max(now, self._channel_free, *reduction.started.values())
            a_step = self._latency + tensor.numel() * tensor.element_size() / self._size / self._bandwidth
            reduction.ends = self._channel_free = reduction.begins + 2 * (self._size - 1) * a_step
        return reduction
