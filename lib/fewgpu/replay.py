"""A trace once more, with other durations: how long the step would have taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fewgpu.causes import NONE, Causes
from fewgpu.schedule.garbage import no_garbage
from fewgpu.trace import EXCHANGE, WAITS


@dataclass(frozen=True)
class Change:
    """What is otherwise. `seconds` are those of all operations, by number (see `causes`); those of sends and receives
    do not count. The others multiply: `flight` the time that messages travel and exchanges take, `handling` that of
    packing and unpacking messages, `lost` that between operations."""

    seconds: Sequence[float] | None = None
    flight: float = 1.0
    handling: float = 1.0
    lost: float = 1.0


class Replay:
    """Operations keep their order and their causes; all that took time takes what a Change says.

    Without a change the ends are those of the trace. What a link that is busy holds up is part of a message's time.
    """

    def __init__(self, causes: Causes) -> None:
        self.causes = causes
        self.seconds = [span.seconds for span in causes.spans]   #: of all operations

    @cached_property
    def _parts(self) -> tuple[list[float], list[float], list[float]]:
        """Of every operation: the time lost before it; of one that waits, how long what it waits for was under way,
        and what it took after that had come."""
        causes, spans = self.causes, self.causes.spans
        lost, flights, rest = [], [], []
        for number, span in enumerate(spans):
            before, sender = causes.before[number], causes.sender[number]
            lost.append(span.start - (spans[before].end if before != NONE else 0.0))
            flight, had = 0.0, span.start
            if sender != NONE:
                came = min(causes.arrived[number], span.end)
                flight = came - (spans[sender].end if number in causes.at_end else spans[sender].start)
                had = max(span.start, came)
            elif number in causes.meeting:
                had = max(spans[other].start for other in causes.meeting[number])
            flights.append(flight)
            rest.append(span.end - had)
        return lost, flights, rest

    @no_garbage()
    def ends(self, change: Change = Change()) -> list[float]:
        """When every operation would end (seconds from the first start)."""
        causes, (lost, flights, rest) = self.causes, self._parts
        before, senders, at_end, meeting = causes.before, causes.sender, causes.at_end, causes.meeting
        seconds = self.seconds if change.seconds is None else change.seconds
        kinds, old = [span.op.kind for span in causes.spans], self.seconds
        starts, ends = [0.0] * len(kinds), [0.0] * len(kinds)

        def begin(number: int) -> float:
            there = before[number]
            return (ends[there] if there != NONE else 0.0) + lost[number] * change.lost

        for number in causes.order:
            start = starts[number] = begin(number)
            sender = senders[number]
            if sender != NONE:
                if kinds[sender] == 'B':   # a bucket is ready after a share of the backward
                    came = starts[sender] + flights[number] * (seconds[sender] / old[sender] if old[sender] else 1.0)
                else:
                    came = (ends if number in at_end else starts)[sender] + flights[number] * change.flight
                ends[number] = max(start, came) + rest[number] * change.handling
            elif number in meeting:
                last = max(map(begin, meeting[number]))
                scale = change.flight if kinds[number] == EXCHANGE else 1.0
                ends[number] = max(start, last + rest[number] * scale)
            elif kinds[number] in WAITS:
                ends[number] = start + old[number] * change.handling
            else:
                ends[number] = start + seconds[number]
        return ends

    def makespan(self, change: Change = Change()) -> float:
        """How long the step would take (seconds)."""
        return max(self.ends(change))
