"""Who waits in vain tells the others in the store, and learns there what is wrong.

    rank 0 waits for rank 1, which waits for rank 2, which died:   misses/0 = 1   misses/1 = 2
    both name rank 2

Whoever has waited for a second also tells what it calls, and compares that with what the rank calls that it waits
for. One thread of the process looks after all waits; it begins with the first one, and ends when there is none left.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from fewgpu.calls import Call, DifferentCalls, difference

PATIENCE = 1.0            # seconds of a wait, until calls are compared
_LOOK, _IDLE = 0.25, 5.0   # seconds between two looks; until the thread ends
_MOST = 10_000            # bytes of a value in the store
_GONE = RuntimeError, ValueError   # of a store that has gone with its rank, or of a process that has left its group


class Misses:
    """Of the rank `me` (among all) in the group with this name. Where the store is gone, nothing is told."""

    def __init__(self, group: str, me: int) -> None:
        self._names, self._me = f'fewgpu/{group}', me

    @property
    def _store(self) -> dist.Store:
        return dist.distributed_c10d._get_default_store()

    def follow(self, peer: int, late: bool) -> int | DifferentCalls:
        """The end of the chain of who waits for whom, after `peer`; or that ranks call different things. `late`:
        this rank has waited until its time limit."""
        with suppress(*_GONE):
            self._store.set(f'{self._names}/misses/{self._me}', str(peer))
            if late:   # the time limits of the others pass at about the same time
                time.sleep(0.5)
            if found := self._read('differ'):
                return DifferentCalls(found)
            seen = {self._me}
            while peer not in seen and (next_ := self._read(f'misses/{peer}')):
                seen.add(peer)
                if not next_.isdecimal() or int(next_) >= dist.get_world_size():   # whoever reaches the store may write
                    break
                peer = int(next_)
        return peer

    def compare(self, wait: 'Wait') -> bool:
        """Tell what this rank calls; does another one call something else? All raise the first difference."""
        with suppress(*_GONE):
            heads = [*self._heads(wait, self._me)]
            for name, head in heads if not wait.is_told else ():   # once: a healthy wait may take hours
                self._store.set(f'{self._names}/calls/{name} {self._me}', head)
            wait.is_told = True
            for peer in {peer for _, peer in (*wait.sends, *wait.receives)}:
                for name, head in heads:
                    if different := difference(self._me, head, peer, self._read(f'calls/{name} {peer}')):
                        self._store.compare_set(f'{self._names}/differ', '', str(different))
            return bool(self._read('differ'))
        return False

    @staticmethod
    def _heads(wait: 'Wait', me: int) -> Iterator[tuple[str, str]]:
        """What is told of the call, and, where each message is agreed on by its two ends, of each of them."""
        yield 'of', wait.call.head()
        if not wait.call.is_whole:
            yield from ((f'{me}>{peer}', wait.call.head(tensor)) for tensor, peer in wait.sends)
            yield from ((f'{peer}>{me}', wait.call.head(tensor)) for tensor, peer in wait.receives)

    def _read(self, name: str) -> str:
        """'' if nobody has written it."""
        key = f'{self._names}/{name}'
        return self._store.get(key)[:_MOST].decode(errors='replace') if self._store.check([key]) else ''


@dataclass(eq=False)
class Wait:
    """One that goes on: when to look at it, in which call, for which messages, with ranks among all."""

    due: float   #: on the clock of time.monotonic
    call: Call
    sends: Sequence[tuple[torch.Tensor, int]]
    receives: Sequence[tuple[torch.Tensor, int]]
    misses: Misses
    hang_up: Callable[[], None]   #: ends the wait, with a RuntimeError
    is_told: bool = False         #: is what it calls in the store?


class _Lookout:
    """The thread that looks after the waits of this process."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def looks_after(self, wait: Wait) -> Iterator[None]:
        with self._lock:
            self._waits[id(wait)] = wait
            if self._thread is None or not self._thread.is_alive():   # after a fork it is not
                self._thread = threading.Thread(target=self._look, daemon=True, name='fewgpu lookout')
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waits[id(wait)]

    def _look(self) -> None:
        latest = time.monotonic()
        while True:
            time.sleep(_LOOK)
            with self._lock:   # nobody adds a wait between the look at them and the end
                waits = [*self._waits.values()]
                if not waits and time.monotonic() > latest + _IDLE:
                    self._thread = None
                    return
            if waits:
                latest = time.monotonic()
                self._look_at_all(waits, latest)
            del waits   # and keep none of their tensors

    @staticmethod
    def _look_at_all(waits: list[Wait], now: float) -> None:
        for wait in waits:
            if now >= wait.due and wait.misses.compare(wait):
                wait.hang_up()


lookout = _Lookout()
