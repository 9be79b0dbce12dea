"""Signs of life: each rank tells in the store, twice a second, where it is."""

import json
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist

from fewgpu.schedule import Message

_EVERY = 0.5    # seconds
_MOST = 2**16   # bytes of what a rank says
_UNREADABLE = 'left a sign that cannot be read'
_FRESH = 1.2    # seconds in which a rank that lives gives another sign


class Sign(NamedTuple):
    """Where a rank is: in which step (0: in none), doing what, and for which message it waits."""

    step: int
    doing: str             # 'is at F3 of step 2'
    waiting: Message | None = None
    beat: int = 0          # counts the signs
    alive: bool = True     # another sign came while we looked

    def here(self) -> str:
        """Of this rank itself: where it is, and what it waits for there."""
        return self.doing + (f' and waits for the {self.waiting}' if self.waiting else '')

    def __str__(self) -> str:
        return self.doing if self.alive else f'gives no sign of life since it told that it {self.doing}'


def read_sign(text: bytes) -> Sign:
    """What `Signs` posts. Whoever reaches the store may have written something else: that is no sign of life."""
    try:
        step, doing, waiting, beat, alive = (json.loads(text[:_MOST])[name] for name in Sign._fields)
        message = waiting and Message(str(waiting[0]), *map(int, waiting[1:]))
        return Sign(int(step), str(doing), message, int(beat), bool(alive))
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return Sign(0, _UNREADABLE)


class Signs:
    """Posts `sign()` to the store, for the member `index` of `size`, until it is closed."""

    def __init__(self, store: dist.Store, index: int, size: int, sign: Callable[[], Sign]) -> None:
        self._store, self._index, self._size, self._sign = store, index, size, sign
        self._beat = 0
        self._closed = threading.Event()
        self._post()
        self._thread = threading.Thread(target=self._run, daemon=True, name='fewgpu signs')
        self._thread.start()

    def look(self) -> dict[int, Sign]:
        """Where the others are; nothing, if the store is gone.

        Takes more than a second: who gives no other sign meanwhile is not alive, and who moves on
        does not wait (an old sign would make a false circle).
        """
        try:
            before = self._read()
            time.sleep(_FRESH)
            after = self._read()
        except RuntimeError:
            return {}
        return {member: sign._replace(
                    alive=sign.beat != before[member].beat,
                    waiting=sign.waiting if sign.waiting == before[member].waiting else None)
                for member, sign in after.items()}

    def last(self, member: int) -> Sign:
        """The last sign of a member."""
        return read_sign(self._store.get(f'at/{member}'))

    def leave_word(self, sentence: str) -> None:
        """For those who find this rank gone."""
        self._store.set(f'word/{self._index}', sentence)

    def word_of(self, member: int) -> str | None:
        key = f'word/{member}'
        return self._store.get(key)[:_MOST].decode(errors='replace') if self._store.check([key]) else None

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _read(self) -> dict[int, Sign]:
        return {member: self.last(member) for member in range(self._size) if member != self._index}

    def _run(self) -> None:
        while not self._closed.wait(_EVERY):
            try:
                self._post()
            except RuntimeError:   # the process with the store is gone: others tell
                return

    def _post(self) -> None:
        self._beat += 1
        self._store.set(f'at/{self._index}',
                        json.dumps(self._sign()._replace(beat=self._beat)._asdict()))
