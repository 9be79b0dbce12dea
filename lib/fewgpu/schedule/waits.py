"""Who waits for whom: does a schedule come to its end, or do its devices wait for one another?"""

from collections.abc import Iterator, Sequence

from fewgpu.schedule.grid import Cell, ScheduleError
from fewgpu.schedule.op import LETTERS, Message, Op, skip_name
from fewgpu.schedule.passes import with_messages
from fewgpu.schedule.schedule import Schedule

SENDS = ('buffered', 'paired', 'blocking')

Wait = tuple[str, Message]   # 'recv': until the message has been sent; 'send': until it is received


def verify_no_deadlock(schedule: Schedule, *, sends: str = 'buffered') -> None:
    """Play the schedule and see whether all devices come to the end of their rows.

    A receive waits until its message has been sent. What a send waits for is the question:

        buffered   nothing: the transport keeps the message, as those of this kit do
        paired     that the receiver has come to its receive; but only when the device's next
                   message of the same kind (activation or gradient) for the same device is due
        blocking   that the receiver has come to its receive, before anything else (a rendezvous)

    With blocking sends 1F1B, and all that is made of it, stops at once if there are two stages and
    two micro-batches: stage 0 sends F1 while stage 1 sends B0, and nobody receives. Megatron-LM,
    whose sends do block, posts them together with the receives that follow
    (`send_forward_recv_backward`, ...): such are paired. Skips are received long after they were sent:
    a transport has to keep them in any case.

    Raises ScheduleError with the chain of waits.
    """
    if sends not in SENDS:
        raise ValueError(f'sends is one of {", ".join(SENDS)}, not {sends!r}')
    why, cell = _Play(schedule, sends).outcome()
    if why:
        raise ScheduleError(f'deadlock with {sends} sends: {why}', schedule, cell)


class _Play:
    """The devices in turn, each as far as it comes."""

    def __init__(self, schedule: Schedule, sends: str) -> None:
        self._stages, self._sends = schedule.stages, sends
        self._explicit = any(op.message for op in schedule)
        whole = schedule if self._explicit else with_messages(schedule)
        self._sender_of, self._receiver_of = whole.sender_of, whole.receiver_of
        self._sent: set[Message] = set()
        self._received: set[Message] = set()   # at least, the receiver has come to the receive
        self._waits: dict[int, Wait] = {}
        self._at = [0] * len(whole.rows)       # of the schedule's row, without or with messages
        self._devices = {device: self._run(device, row) for device, row in enumerate(whole.rows)}

    def outcome(self) -> tuple[str, Cell | None]:
        """Who waits for whom at the end, and the cell of the first of them; '' if nobody does."""
        moved = True
        while moved:
            moved = False
            for device, steps in list(self._devices.items()):
                before, wait = self._waits.pop(device, None), next(steps, None)
                moved |= wait != before
                if wait is None:
                    del self._devices[device]
                else:
                    self._waits[device] = wait
        return self._explain() if self._waits else ('', None)

    def _run(self, device: int, row: Sequence[Op]) -> Iterator[Wait]:
        """One device; it yields what it waits for, again and again as long as it does."""
        last: dict[tuple[str, int], Message] = {}   # sent, of each kind, to each device
        computed = 0
        for position, (kind, _, _, message) in enumerate(row):
            self._at[device] = (position if self._explicit else
                                computed - 1 if kind == 'send' else computed)
            if kind == 'recv':
                yield from self._recv(message)
            elif kind == 'send':
                yield from self._send(message, device, last)
            else:
                computed += 1

    def _recv(self, message: Message) -> Iterator[Wait]:
        self._received.add(message)
        while message not in self._sent and 0 <= message.source < self._stages:
            yield 'recv', message

    def _send(self, message: Message, device: int, last: dict) -> Iterator[Wait]:
        there = self._receiver_of(message)   # None: at the caller
        leaves = there not in (None, device) and skip_name(message.what) is None
        if leaves and self._sends == 'paired':
            before = last.get((message.what, there))
            while before is not None and before not in self._received:
                yield 'send', before
            last[message.what, there] = message
        self._sent.add(message)
        while leaves and self._sends == 'blocking' and message not in self._received:
            yield 'send', message

    def _explain(self) -> tuple[str, Cell]:
        """Follow the waits to a circle, or to a device that is done, and tell them from there."""
        path: list[int | None] = [next(iter(self._waits))]
        while (who := self._other(path[-1])) in self._waits and who not in path:
            path.append(who)
        if who in path:
            path = path[path.index(who):]
        said, asked = '', None
        for device in path:
            kind, m = self._waits[device]
            own, other = (m.stage, m.source) if kind == 'recv' else (m.source, m.stage)
            name = f'{LETTERS.get(m.what, m.what)}{m.micro_batch if m.micro_batch >= 0 else ""}'
            subject = (f'stage {own}' if not said else
                       ', which' if own == asked else f', on whose device stage {own}')
            asked = other
            said += f'{subject} waits ' + (f'for {name} from {m.origin}' if kind == 'recv' else
                                           f'for stage {other} to receive {name}')
        if who == path[-1]:
            said += ', which comes later on the same device'
        elif who not in self._waits:
            said += f', which never {"sends" if kind == "recv" else "receives"} it'
        return said, (path[0], self._at[path[0]])

    def _other(self, device: int) -> int | None:
        kind, message = self._waits[device]
        return (self._sender_of if kind == 'recv' else self._receiver_of)(message)
