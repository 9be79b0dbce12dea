"""When messages left and came, and ranks met: what lets their clocks be compared afterwards."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from fewgpu.schedule import Message

KEPT = 8192   # of each direction: a clock drifts, so old stamps tell little


class Stamp(NamedTuple):
    """One message; those from one rank to another are numbered from 0, and come in order."""

    number: int
    seconds: float   #: on this rank's clock (time.perf_counter), before it left or after it came
    size: int        #: bytes; 0 where it came
    step: int
    message: Message


class Stamps:
    """Of the messages between this rank and one other, the latest of each direction."""

    def __init__(self) -> None:
        self.sent: deque[Stamp] = deque(maxlen=KEPT)
        self.came: deque[Stamp] = deque(maxlen=KEPT)
        self._counts = [0, 0]

    def leaves(self, step: int, message: Message, size: int) -> None:
        """In the order in which they leave."""
        self.sent.append(Stamp(self._counts[0], time.perf_counter(), size, step, message))
        self._counts[0] += 1

    def comes(self, step: int, message: Message) -> None:
        """In the order in which they come."""
        self.came.append(Stamp(self._counts[1], time.perf_counter(), 0, step, message))
        self._counts[1] += 1


class Meetings:
    """When these ranks called the same collective, from which nobody returns before all have called it."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.stamps: deque[tuple[int, float, float]] = deque(maxlen=64)   #: (number, start, end) by this rank's clock
        self._count = 0

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Round the call."""
        start = time.perf_counter()
        yield
        self.stamps.append((self._count, start, time.perf_counter()))
        self._count += 1
