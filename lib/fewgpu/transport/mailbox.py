"""The one place where anybody waits: messages by name, and an explanation when none will come."""

import threading
import time
from typing import Any

from fewgpu.limit import verify_time_limit
from fewgpu.schedule import Message, Schedule
from fewgpu.schedule.op import LETTERS


class Deadlock(RuntimeError):
    """Everybody waits for somebody else, or a message did not come in time."""


class Mailbox:
    """Messages between the devices of a schedule, and the caller at its two ends.

    Messages have names, not an order. `time_limit` bounds every wait of a device (seconds). After
    `abort` every device stops at its next operation, and `raise_first_error` raises what was wrong.
    """

    def __init__(self, schedule: Schedule, *, time_limit: float | None = None) -> None:
        if time_limit is not None:
            verify_time_limit(time_limit)
        self._schedule = schedule
        self._time_limit = time_limit
        self._messages: dict[Message, Any] = {}
        self._changed = threading.Condition()
        self._waiting: dict[int, Message] = {}   # which device waits for what
        self._running = set(range(len(schedule.rows)))
        self._position = [0] * len(schedule.rows)
        self._error: BaseException | None = None
        self.arrived: dict[Message, float] = {}   #: when what was received had come, by time.perf_counter

    def at(self, device: int, position: int) -> None:
        """Device `device` comes to its operation `position`; raises `Stopped` after an abort."""
        self._position[device] = position
        if self._error is not None:
            raise Stopped

    def send(self, message: Message, value: Any) -> None:
        with self._changed:
            self._messages[message] = value
            if message in self._waiting.values():   # wake nobody in vain: it costs the sender time
                self._changed.notify_all()

    def recv(self, message: Message, device: int) -> Any:
        """The value of the message, for `device`, as soon as it is there."""
        if not self._comes(message, device):
            why = self._overdue(device)   # may ask other ranks: meanwhile the message may still come
            with self._changed:
                if message not in self._messages:
                    self._fail(Deadlock(why))
        with self._changed:
            self._waiting.pop(device, None)
            return self._messages.pop(message)

    def _comes(self, message: Message, device: int) -> bool:
        """Wait for the message; False if the time is over."""
        deadline = None if self._time_limit is None else time.monotonic() + self._time_limit
        with self._changed:
            while message not in self._messages:
                self._waiting[device] = message
                if self._error is not None:
                    raise Stopped
                if (error := self._hopeless(message, device)) is not None:
                    self._fail(error)
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._changed.wait(None if deadline is None else deadline - time.monotonic())
        return True

    def take(self, message: Message) -> Any:
        """The value of a message for the caller, after `join`."""
        if message not in self._messages:
            raise Deadlock(f'the schedule {self._schedule.name} ended without the {message}')
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
        """The caller waits until every device is done."""
        with self._changed:
            while self._running:
                self._changed.wait(1.0)   # not for ever: Ctrl-C is noticed on every system

    def still_running(self) -> str:
        """The devices that are not done, and where they are."""
        return ', '.join(f'device {device} (at {self._schedule.rows[device][self._position[device]]})'
                         for device in sorted(self._running)) or 'the last operation'

    def raise_first_error(self) -> None:
        """After `join`: raise the first error of any device, the real one, if there was any."""
        if self._error is not None:
            error, self._error = self._error, None
            self._messages.clear()
            try:
                raise error
            finally:
                del error   # or its traceback would hold this frame, and this frame the error

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.notify_all()
        raise Stopped

    def _hopeless(self, message: Message, device: int) -> Exception | None:
        """Why the message that the device waits for will not come, if that is already known."""
        nobody_moves = (self._running <= self._waiting.keys()
                        and not any(self._waiting[who] in self._messages for who in self._running))
        return Deadlock(f'deadlock: {self._explain(device)}') if nobody_moves else None

    def _overdue(self, device: int) -> str:
        return f'after {self._time_limit:g} s {self._explain(device)}'

    def _explain(self, who: int) -> str:
        """The chain of who waits for whom, beginning with `who`."""
        chain: list[str] = []
        seen: set[int] = set()
        while who in self._waiting and who not in seen:
            seen.add(who)
            message = self._waiting[who]
            kind = LETTERS.get(message.what, message.what)
            number = message.micro_batch if message.micro_batch >= 0 else ''
            from_whom = message.origin if 0 <= message.source < self._schedule.stages else 'the caller'
            chain.append(f'stage {message.stage} waits for {kind}{number} from {from_whom}')
            who = self._schedule.sender_of(message)
        if who is not None and who not in self._waiting:
            chain.append(self._where(who))
        return ', '.join(chain)

    def _where(self, device: int) -> str:
        row = self._schedule.rows[device]
        where = f'at {row[self._position[device]]}' if device in self._running else 'done'
        return f'device {device} is {where}'


class Stopped(Exception):
    """This device stops because of an error elsewhere."""
