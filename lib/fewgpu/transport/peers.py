"""The connection to one other rank: sends that wait for nobody, and a thread that receives."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fewgpu.schedule import Message
from fewgpu.transport.stamps import Stamps
from fewgpu.transport.wire import HEAD, decode, encode

FOREVER = timedelta(days=7)   # gloo closes all connections when a wait times out: we wait ourselves
BYE = Message('bye', -1, -1, -1)
_HEADS, _PARTS = 0, 1   # tags: each has an order of its own
_LEAVING = 0.01  # seconds, as a thread that woke up for each message would hold up the sender
_CLOSING = 2.0   # seconds for the other side to say goodbye

Deliver = Callable[[int, Message, Any], None]   # (step, message, value); in the receiving thread


class Peer:
    """Messages to and from the rank at `place` in `group` (of gloo).

    What comes is given to `deliver`, the goodbye of the other side, too. If the connection breaks
    instead, `lost` is called. With gloo data moves only when a receive is posted: the thread keeps
    one posted, so transfers go on while both sides compute. Nothing is heard before `start`.
    """

    def __init__(self, group: dist.ProcessGroupGloo, place: int, deliver: Deliver,
                 lost: Callable[[Exception], None]) -> None:
        self._group, self._place, self._deliver, self._lost = group, place, deliver, lost
        self._turn = threading.Lock()   # the head and the parts of a message follow each other
        self._said_bye = False
        self.stamps = Stamps()   #: when its messages left and came
        self._leaving: queue.SimpleQueue[tuple[list, list] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=run, daemon=True, name=f'fewgpu rank {place}')
                         for run in (self._listen, self._let_go)]

    def start(self) -> None:
        """Listen from now on, and look after what is sent."""
        for thread in self._threads:
            thread.start()

    def send(self, step: int, message: Message, value: Any) -> None:
        """The tensors of `value` are on the CPU, and must not change any more. Nothing is sent after
        `close`, after the goodbye of the other side, or when the connection has broken.

        Raises TypeError as `wire.encode` does.
        """
        tensors = encode(step, message, value)
        with self._turn:
            if self._said_bye:
                return
            self._said_bye = message == BYE
            self.stamps.leaves(step, message, sum(tensor.nbytes for tensor in tensors))
            try:
                works = [self._group.send([tensor], self._place, _PARTS if k else _HEADS)
                         for k, tensor in enumerate(tensors)]
            except RuntimeError:   # broken: the listening thread tells
                return
        self._leaving.put((works, tensors))

    def close(self) -> None:
        """Say goodbye. The other side's thread answers, whatever its program is doing."""
        self.send(0, BYE, None)
        listening, letting_go = self._threads
        listening.join(_CLOSING)
        self._leaving.put(None)
        letting_go.join(_CLOSING)

    def _listen(self) -> None:
        head = torch.empty(HEAD, dtype=torch.uint8)
        try:
            coming = self._post(head, _HEADS)
            while True:
                coming.wait(FOREVER)
                step, message, value = decode(head, self._receive)
                self.stamps.comes(step, message)
                if message == BYE:
                    break
                self._deliver(step, message, value)
                del value   # or it would live until the next one comes
                coming = self._post(head, _HEADS)
            self._deliver(step, message, None)
            self.send(0, BYE, None)
        except Exception as error:
            self._lost(error)

    def _post(self, tensor: torch.Tensor, tag: int) -> dist.Work:
        return self._group.recv([tensor], self._place, tag)

    def _receive(self, parts: Sequence[torch.Tensor]) -> None:
        for work in [self._post(part, _PARTS) for part in parts]:
            work.wait(FOREVER)

    def _let_go(self) -> None:
        while self._let_some_go():
            pass

    def _let_some_go(self) -> bool:
        """Keep what is sent until it has left; False at the end. (Only a wait tells that it has:
        so nobody else waits.)"""
        leaving = [self._leaving.get()]
        time.sleep(_LEAVING)
        while not self._leaving.empty():
            leaving.append(self._leaving.get())
        for works, _ in filter(None, leaving):
            for work in works:
                try:
                    work.wait(FOREVER)
                except RuntimeError:   # broken: the listening thread tells
                    pass
        return None not in leaving
