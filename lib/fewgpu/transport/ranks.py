"""Devices as ranks: each process runs one row of the schedule, and messages go over the wire.

Every wait has a time limit, and then tells where all the others are. An error of one rank is told to all, and a
connection that breaks tells that its rank died.
"""

import atexit
import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from fewgpu.group import come_to_make, verify_met
from fewgpu.meeting import PeerError
from fewgpu.schedule import Message, Schedule
from fewgpu.transport.copies import Parcel
from fewgpu.transport.mailbox import Deadlock
from fewgpu.transport.peers import BYE, Peer
from fewgpu.transport.rank_mailbox import RankFailed, RankMailbox, described
from fewgpu.transport.signs import Sign, Signs
from fewgpu.transport.wire import Garbled

_OUTSIDE, _REMEDY = 'is not in a step', 'start all ranks again, from the latest checkpoint'
_AHEAD = 2   # how many steps a rank may run ahead of another, whose memory its messages fill
_BEGIN, _TELL, _ERROR = 'begin', 'tell', 'error'   # what ranks tell each other besides values
_made: Counter[tuple[int, ...]] = Counter()


class Ranks:
    """Processes of torch.distributed that run the rows of schedules together, step by step.

    `members` are global ranks, in the order of the rows; all, if it is None. Every member makes its Ranks, at the same
    point of its program, with the same arguments, and takes the same steps. `time_limit` (seconds) bounds every wait
    for another rank. Messages travel in a process group of their own (gloo; what lives on a GPU goes by way of the
    host's memory: NCCL would make a receive that is posted early hold up the GPU's computation. Not tested on GPUs).

    After an error all members' Ranks are of no more use: each further step raises RankFailed. Raises RuntimeError
    without torch.distributed, ValueError for wrong members, or if one of them makes another class, Deadlock if one does
    not come in time.
    """

    def __init__(self, members: Sequence[int] | None = None, *, time_limit: float = 60.0) -> None:
        verify_met(time_limit)
        world = range(dist.get_world_size())
        self.members = list(world if members is None else members)
        if len({*self.members} & {*world}) < len(self.members) or dist.get_rank() not in self.members:
            raise ValueError(f'the members {self.members} have to be different ranks of the '
                             f'{len(world)} there are, this one (rank {dist.get_rank()}) among them')
        self.index, self.size = self.members.index(dist.get_rank()), len(self.members)
        self.time_limit = time_limit
        self._changed = threading.Condition()   # never held while a mailbox is asked for something, or `_telling` taken
        self.step, self._tells = 0, 0            # `step`: how many were begun
        self._telling = threading.RLock()
        self._begun = [(0, '')] * self.size      # of each member the latest step, and its schedule
        self._told: dict[int, Any] = {}
        self._early: dict[int, list[tuple[Message, Parcel]]] = {}   # by step
        self._mailboxes: weakref.WeakValueDictionary[int, RankMailbox] = weakref.WeakValueDictionary()
        self._left: set[int] = set()             # who said goodbye
        self._error, self._doing = None, _OUTSIDE   # a RankFailed; what it does when not in a step
        self.peers: dict[int, Peer] = {}         #: the connections, by row
        self._connect()
        atexit.register(self.close)   # its threads must not meet an interpreter that is gone

    def _connect(self) -> None:
        _made[tuple(self.members)] += 1
        name = f'fewgpu {self.members} {_made[tuple(self.members)]}'
        store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._signs = Signs(store, self.index, self.size, self._sign)
        try:
            come_to_make(self.members, f'Ranks({self.members})', self.time_limit)
            if self.size > 1:
                group = dist.ProcessGroupGloo(store, self.index, self.size, timedelta(seconds=self.time_limit))
                self.peers = {row: Peer(group, row, partial(self._arrived, row), partial(self._lost, row))
                               for row in range(self.size) if row != self.index}
                for peer in self.peers.values():   # what one of them hears at once may be for all to know
                    peer.start()
        except BaseException as error:
            self._signs.close()
            if isinstance(error, PeerError):
                raise Deadlock(str(error)) from error
            raise

    def mailbox(self, schedule: Schedule) -> RankMailbox:
        """For the next step, which runs `schedule` (with messages), a row a member.

        Raises RankFailed after an error, ValueError if the schedule has not a row a member.
        """
        if len(schedule.rows) != self.size:
            raise ValueError(f'the schedule {schedule.name} has {len(schedule.rows)} rows, but there are {self.size} '
                             f'ranks, to run one each')
        plan = (f'{schedule.name} with {schedule.stages} stages, {schedule.micro_batches} micro-batches '
                f'and {sum(map(len, schedule.rows))} operations')
        with self._changed:
            self.step += 1
            step, self._begun[self.index] = self.step, (self.step, plan)
            mailbox = self._mailboxes[step] = RankMailbox(schedule, self, step)
            early = self._early.pop(step, [])
        self._tell_all(Message(_BEGIN, -1, -1, -1), plan)
        self._wait(f'waits to begin step {step}', lambda: {
            row for row, (begun, _) in enumerate(self._begun) if begun < step - _AHEAD})
        for row in self.peers:
            self._look_after(row)
        for message, parcel in early:
            mailbox.deliver(message, parcel)
        return mailbox

    def tell(self, row: int, value: Any) -> Any:
        """On all members: the value of the one with this row. All call it, in the same order. Raises as `mailbox`."""
        self._tells = count = self._tells + 1
        if row == self.index:
            self._tell_all(Message(_TELL, row, -1, count), _on_host(Parcel.of(value)))
        self._wait(f'waits for word {count} of {self._names([row])}',
                   lambda: {row} if row != self.index and count not in self._told else set())
        return value if row == self.index else self._told.pop(count)

    def abort(self, error: BaseException) -> None:
        """Tell all the others of an error here: they stop at their next wait. The first counts."""
        sentence = str(error) if isinstance(error, RankFailed) else (
            f'{self._names([self.index])} failed in step {self.step}: {described(error)}')
        with self._telling, contextlib.suppress(RuntimeError):   # the store may be gone
            if self._stop(RankFailed(sentence)):
                self._tell_all(Message(_ERROR, -1, -1, -1), sentence)
                self._signs.leave_word(sentence)

    def close(self) -> None:
        """Leave the others, who may still finish what they have all messages for."""
        atexit.unregister(self.close)
        with self._telling:   # an error that stopped this rank reaches the others before its goodbye
            self._stop(RankFailed(f'the Ranks of {self._names([self.index])} are closed'))
        for peer in self.peers.values():
            peer.close()
        self._signs.close()

    def send(self, row: int, step: int, message: Message, parcel: Parcel) -> None:
        """Send a value to a member; waits for nobody."""
        self.peers[row].send(step, message, _on_host(parcel))

    def gone(self, row: int) -> str | None:
        """That a member has left, if it has."""
        if row in self._left:
            return f'{self._names([row])} ended after step {self._begun[row][0]}'

    def look(self) -> Mapping[int, Sign]:
        """Where the others are; see `Signs.look`."""
        return self._signs.look()

    def _tell_all(self, message: Message, value: Any) -> None:
        for peer in self.peers.values():
            peer.send(self.step, message, value)

    def _wait(self, doing: str, missing: Callable[[], set[int]]) -> None:
        """Until no member is missing."""
        deadline, self._doing = time.monotonic() + self.time_limit, doing
        with self._changed:
            while self._error is None and (rows := missing()):
                if rows & self._left or time.monotonic() >= deadline:
                    break
                self._changed.wait(deadline - time.monotonic())
            else:
                rows = set()
        if rows:
            self.abort(error := self._late(doing, rows))
            raise error
        if self._error is not None:
            raise RankFailed(str(self._error))
        self._doing = _OUTSIDE

    def _late(self, doing: str, rows: set[int]) -> Exception:
        for row in rows & self._left:
            own = self._names([self.index])
            return RankFailed(f'{self.gone(row)}, but {own} {doing}: all ranks must take the same steps')
        signs = self.look()
        where = ', '.join(f'{self._names([row])} {signs.get(row, "cannot be asked")}' for row in rows)
        return Deadlock(f'after {self.time_limit:g} s {self._names([self.index])} {doing}: {where}')

    def _arrived(self, row: int, step: int, message: Message, value: Any) -> None:
        """In the thread that listens to this member. Raises Garbled for what no member says."""
        if message.what in (_BEGIN, _ERROR) and not isinstance(value, str):
            raise Garbled(f'{message.what} with a {type(value).__name__}')
        if message.what == _ERROR:
            self._stop(RankFailed(value))
        elif message.what in (_BEGIN, _TELL, BYE.what):
            with self._changed:
                if message.what == _BEGIN:
                    self._begun[row] = step, value
                elif message.what == _TELL:
                    self._told[message.micro_batch] = value
                else:
                    self._left.add(row)
                self._changed.notify_all()
            self._look_after(row)
        else:
            parcel = Parcel(value, {}, time.perf_counter(), own=True)
            with self._changed:
                mailbox = self._mailboxes.get(step)
                if mailbox is None and step > self.step:
                    self._early.setdefault(step, []).append((message, parcel))
            if mailbox is not None:
                mailbox.deliver(message, parcel)

    def _look_after(self, row: int) -> None:
        """After news of a member: does it run what we run, and do we wait in vain for it?"""
        for mailbox in self._live():
            mailbox.wake()
        (step, plan), (their_step, theirs) = self._begun[self.index], self._begun[row]
        if step == their_step and plan != theirs:
            self.abort(ValueError(f'in step {step} {self._names([row])} runs {theirs}, but '
                                  f'{self._names([self.index])} runs {plan}'))

    def _lost(self, row: int, error: Exception) -> None:
        """The connection broke. In the thread that listened to this member."""
        sentence = f'the connection to {self._names([row])} broke ({error})'
        with contextlib.suppress(RuntimeError):   # the store may be gone, too
            sentence = sentence if isinstance(error, Garbled) else self._signs.word_of(row) or (
                f'{self._names([row])} died without a word; its last sign of life was that it '
                f'{self._signs.last(row)}; {self._names([self.index])} {self._sign().here()}: {_REMEDY}')
        self.abort(RankFailed(sentence))   # tells all: this rank may be gone before they notice

    def _stop(self, error: RankFailed) -> bool:
        """Let every wait raise the error; False if there was one before."""
        with self._changed:
            first, self._error = self._error is None, self._error or error
            self._changed.notify_all()
        for mailbox in self._live():
            mailbox.stop(RankFailed(str(self._error)))
        return first

    def _live(self) -> list[RankMailbox]:
        with self._changed:
            return list(self._mailboxes.values())

    def _sign(self) -> Sign:
        mailbox = self._mailboxes.get(self.step)
        return mailbox and mailbox.sign() or Sign(0, f'{self._doing}, after step {self.step}')

    def _names(self, rows: Sequence[int]) -> str:
        return 'rank ' + ', '.join(str(self.members[row]) for row in rows)


def _on_host(parcel: Parcel) -> Any:
    return parcel.copy_to(torch.device('cpu')) if parcel.ready else parcel.value
