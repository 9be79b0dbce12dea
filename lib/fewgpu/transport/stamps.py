"""When messages left and came: what lets the clocks of two ranks be compared afterwards."""

import time
from collections import deque
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
