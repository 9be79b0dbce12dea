"""The mailbox of one step on one rank: what is for another rank goes over the wire."""

from collections.abc import Mapping
from typing import Protocol

from fewgpu.schedule import Message, Schedule
from fewgpu.transport.copies import Parcel
from fewgpu.transport.mailbox import Deadlock, Mailbox, Stopped
from fewgpu.transport.signs import Sign


class RankFailed(RuntimeError):
    """Another rank failed, died, or ended too early. (The rank that failed has its own error.)"""

    is_of_another_rank = True   # see fewgpu.launch: it raises that rank's own error, if it left one


class Wire(Protocol):
    """What a mailbox needs of `fewgpu.transport.ranks.Ranks`. Members are counted by rows."""

    members: list[int]
    index: int
    time_limit: float

    def send(self, row: int, step: int, message: Message, parcel: Parcel) -> None: ...
    def abort(self, error: BaseException) -> None: ...
    def gone(self, row: int) -> str | None: ...
    def look(self) -> Mapping[int, Sign]: ...


class RankMailbox(Mailbox):
    """Messages of step `step` for this rank, and an explanation that asks the others."""

    def __init__(self, schedule: Schedule, ranks: Wire, step: int) -> None:
        super().__init__(schedule, time_limit=ranks.time_limit)
        self._ranks, self._index, self._step = ranks, ranks.index, step
        self._running = {ranks.index}
        self._seen: Mapping[int, Sign] = {}

    def send(self, message: Message, parcel: Parcel) -> None:
        """To the rank it is for; a message to the outside of the pipeline stays here."""
        row = self._schedule.receiver_of(message)
        if row in (None, self._index):
            self.deliver(message, parcel)
        else:
            self._ranks.send(row, self._step, message, parcel)

    def deliver(self, message: Message, parcel: Parcel) -> None:
        super().send(message, parcel)

    def recv(self, message: Message, device: int) -> Parcel:
        try:
            return super().recv(message, device)
        except Stopped:
            self._tell()
            raise

    def abort(self, error: BaseException) -> None:
        super().abort(error)
        self._tell()

    def stop(self, error: BaseException) -> None:
        """As `abort`, because of an error elsewhere."""
        super().abort(error)

    def wake(self) -> None:
        """Let a wait see whether it has become hopeless."""
        with self._changed:
            self._changed.notify_all()

    def sign(self) -> Sign | None:
        """Where this rank is; None if it is done."""
        if self._index not in self._running:
            return None
        row = self._schedule.rows[self._index]
        at = row[self._position[self._index]] if row else 'the end'
        return Sign(self._step, f'is at {at} of step {self._step}', self._waiting.get(self._index))

    def _tell(self) -> None:
        error = self._error   # it may be raised, and gone, at any time
        if error is not None:
            self._ranks.abort(error)

    def _hopeless(self, message: Message, device: int) -> Exception | None:
        row = self._schedule.sender_of(message)
        if row == device or len(self._ranks.members) == 1:
            return Deadlock(f'deadlock: {self._explain(device)}')
        if row is None or self._ranks.gone(row) is None:
            return None
        return RankFailed(f'in step {self._step} {self._explain(device)}: all ranks must take the same '
                          f'steps')

    def _overdue(self, device: int) -> str:
        self._seen = self._ranks.look()
        for row, sign in self._seen.items():
            if sign.waiting and sign.alive and sign.step == self._step:
                self._waiting[row] = sign.waiting
        return (f'after {self._time_limit:g} s rank {self._ranks.members[device]}, which {self.sign()}: '
                f'{self._explain(device)}')

    def _where(self, device: int) -> str:
        sign = self._seen.get(device, 'has not told where it is')
        return self._ranks.gone(device) or f'rank {self._ranks.members[device]} {sign}'


def described(error: BaseException) -> str:
    """An error in one line, for the others."""
    notes = ''.join(f' ({note})' for note in getattr(error, '__notes__', ()))
    return f'{type(error).__name__}: {error}{notes}'
