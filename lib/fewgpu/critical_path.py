"""The critical path: the longest chain of operations and messages, which decides how long a step takes."""

from typing import NamedTuple

from fewgpu.causes import NONE, Causes
from fewgpu.schedule import Op


class Link(NamedTuple):
    """One link of the chain, from `start` to `end` (seconds): what was done, or came, then.

    `kind` is 'op' (an operation of the device), 'message' (from `sender` to the device, until it had come),
    'meeting' (an exchange that began with the last one to come, on device `sender`), or 'lost' (neither: the device
    was between two operations, or had not begun yet).
    """

    kind: str
    row: int
    op: Op | None
    start: float
    end: float
    sender: int = NONE

    @property
    def seconds(self) -> float:
        return self.end - self.start


def critical_path(causes: Causes) -> list[Link]:
    """From the first start to the last end, without a gap: each link begins when the one before it ends.

    Followed from the end to the beginning: an operation begins after the one before it on its device, and a receive
    ends, if it waited, when its message had come, which left when the sender had done what it carries. Time in which
    nothing is known to have happened is 'lost'; without it the chain cannot be shortened but by a shorter link.
    """
    spans, links = causes.spans, []
    number = max(range(len(spans)), key=lambda each: (spans[each].end, spans[each].start))
    clock = spans[number].end
    while True:
        span, row = spans[number], causes.rows[number]
        clock = _add(links, Link('lost', row, None, min(span.end, clock), clock))
        sender, arrived = causes.sender[number], min(causes.arrived[number], clock)
        last = max(causes.meeting.get(number, (number,)), key=lambda each: spans[each].start)
        if sender != NONE and arrived > span.start:
            clock = _add(links, Link('op', row, span.op, arrived, clock))
            if number not in causes.at_end:
                kind = 'op' if spans[sender].op.kind == 'B' else 'message'   # a bucket is ready within a backward
                clock = _add(links, Link(kind, causes.rows[sender] if kind == 'op' else row, spans[sender].op if
                                         kind == 'op' else span.op, min(spans[sender].start, clock), clock,
                                         causes.rows[sender]))
                number = causes.before[sender]
            else:
                number = sender
        elif last != number:
            clock = _add(links, Link('meeting', row, span.op, min(spans[last].start, clock), clock, causes.rows[last]))
            number, row = causes.before[last], causes.rows[last]
        else:
            clock = _add(links, Link('op', row, span.op, span.start, clock))
            number = causes.before[number]
        if number == NONE:
            _add(links, Link('lost', row, None, 0.0, clock))
            return links[::-1]


def _add(links: list[Link], link: Link) -> float:
    """Put it before the others, if it took any time; where it begins."""
    if link.end > link.start:
        links.append(link)
    return link.start


def length(path: list[Link]) -> float:
    """Seconds of the operations and messages of a path: all of it but what was lost."""
    return sum(link.seconds for link in path if link.kind != 'lost')
