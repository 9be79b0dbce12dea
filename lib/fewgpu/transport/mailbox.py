"""The one place where anybody waits: messages by name, and an explanation when none will come."""

import threading
import time
from typing import Any

from fewgpu.schedule import ACTIVATION, Message, Schedule

CALLER = -1   # who feeds the pipeline and takes what comes out, beside devices 0, 1, ...


class Deadlock(RuntimeError):
    """Everybody waits for somebody else, or a message did not come in time."""


class Mailbox:
    """Messages between the devices of a schedule, and the caller at its two ends.

    Messages have names, not an order. `time_limit` bounds every wait (seconds). After `abort`
    everybody stops at the next operation, and `join` raises the first error.
    """

    def __init__(self, schedule: Schedule, *, time_limit: float | None = None) -> None:
        self._schedule = schedule
        self._time_limit = time_limit
        self._messages: dict[Message, Any] = {}
        self._changed = threading.Condition()
        self._waiting: dict[int, Message] = {}                    # who waits for what
        self._running = set(range(len(schedule.rows))) | {CALLER}
        self._position = [0] * len(schedule.rows)
        self._error: BaseException | None = None

    def at(self, device: int, position: int) -> None:
        """Device `device` comes to its operation `position`; raises `Stopped` after an abort."""
        self._position[device] = position
        if self._error is not None:
            raise Stopped

    def send(self, message: Message, value: Any) -> None:
        with self._changed:
            self._messages[message] = value
            self._changed.notify_all()

    def recv(self, message: Message, who: int) -> Any:
        """The value of the message, as soon as it is there. `who` is a device or CALLER."""
        deadline = None if self._time_limit is None else time.monotonic() + self._time_limit
        with self._changed:
            self._waiting[who] = message
            while message not in self._messages:
                if self._error is not None:
                    raise Stopped
                if self._nobody_moves():
                    self._fail(Deadlock(f'deadlock: {self._explain(who)}'))
                elif deadline is not None and time.monotonic() > deadline:
                    self._fail(Deadlock(f'after {self._time_limit:g} s {self._explain(who)}'))
                else:   # not for ever, so that Ctrl-C is noticed on every system
                    self._changed.wait(1.0 if deadline is None else min(1.0, self._time_limit))
            del self._waiting[who]
            return self._messages.pop(message)

    def abort(self, error: BaseException) -> None:
        """Stop everybody; the first error is the one that counts."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def done(self, device: int) -> None:
        """Device `device` has run its row, or stopped."""
        with self._changed:
            self._running.discard(device)
            self._changed.notify_all()

    def join(self) -> None:
        """The caller waits until every device is done; raises the first error, the real one."""
        with self._changed:
            while self._running > {CALLER}:
                self._changed.wait(1.0)
        if self._error is not None:
            error, self._error = self._error, None
            self._messages.clear()
            try:
                raise error
            finally:
                del error   # or its traceback would hold this frame, and this frame the error

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._changed.notify_all()
        raise Stopped

    def _nobody_moves(self) -> bool:
        return (self._running <= self._waiting.keys()
                and not any(self._waiting[who] in self._messages for who in self._running))

    def _explain(self, who: int) -> str:
        """The chain of who waits for whom, beginning with `who`."""
        chain, seen = [], set()
        while who in self._waiting and who not in seen:
            seen.add(who)
            message = self._waiting[who]
            who_waits = 'the caller' if who == CALLER else f'stage {message.stage}'
            kind = 'F' if message.what == ACTIVATION else 'B'
            source = message.source
            from_whom = (f'stage {source}' if 0 <= source < self._schedule.stages
                         else 'the caller')
            chain.append(f'{who_waits} waits for {kind}{message.micro_batch} from {from_whom}')
            who = self._schedule.device_of.get(source, CALLER)
        if who != CALLER and who not in self._waiting:
            row = self._schedule.rows[who]
            where = f'at {row[self._position[who]]}' if who in self._running else 'done'
            chain.append(f'device {who} is {where}')
        return ', '.join(chain)


class Stopped(Exception):
    """This device stops because of an error elsewhere."""
