"""What a merged trace shows: how long devices computed, what they waited for, and how evenly the work was shared."""

from dataclasses import dataclass

from fewgpu.causes import NONE, Causes
from fewgpu.trace import WAITS
from fewgpu.trace_files import AVERAGING
from fewgpu.trace_merge import Merged


@dataclass(frozen=True)
class Figures:
    """Of one step; seconds, each a list with one number a device."""

    devices: tuple[int, ...]   #: the rows that are devices
    makespan: float
    busy: tuple[float, ...]    #: computing
    others: tuple[float, ...]  #: waiting for what others had not done yet
    flight: tuple[float, ...]  #: waiting for what had left, but not come
    handling: tuple[float, ...]   #: packing and unpacking messages

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which they did not compute."""
        return 1.0 - self.share(self.busy)

    @property
    def busiest(self) -> int:
        """The row of the device that computed longest."""
        return self.devices[max(range(len(self.busy)), key=self.busy.__getitem__)]

    @property
    def imbalance(self) -> float:
        """How often the mean device's work the busiest one had: 1 if all have the same."""
        return max(self.busy) * len(self.busy) / (sum(self.busy) or 1.0) if any(self.busy) else 1.0

    def share(self, seconds: tuple[float, ...]) -> float:
        """Of all devices' time."""
        return sum(seconds) / (len(seconds) * self.makespan or 1.0)


def devices_of(merged: Merged) -> tuple[int, ...]:
    """The rows that compute; in data parallelism every other row is a thread that exchanges."""
    return tuple(range(0, len(merged.timeline.rows), 2 if merged.schedule['name'] == AVERAGING else 1))


def figures(causes: Causes) -> Figures:
    """Of a merged trace. Where replicas average in an update, waiting there for the last of them counts as waiting."""
    merged, spans = causes.merged, causes.spans
    devices = devices_of(merged)
    busy, others, flight, handling = ([0.0] * len(devices) for _ in range(4))
    for place, row in enumerate(devices):
        for number in range(causes.first[row], causes.first[row + 1]):
            span, sender = spans[number], causes.sender[number]
            if span.op.kind not in WAITS:
                last = max((spans[other].start for other in causes.meeting.get(number, ())), default=span.start)
                waited = min(max(last - span.start, 0.0), span.seconds)
                others[place] += waited
                busy[place] += span.seconds - waited
            elif sender == NONE:
                handling[place] += span.seconds
            else:
                came = min(max(causes.arrived[number], span.start), span.end)
                left = spans[sender].start
                if number in causes.at_end:   # it left when all had begun
                    left = max(spans[other].start for other in causes.meeting.get(sender, (sender,)))
                left = min(max(left, span.start), came)
                others[place] += left - span.start
                flight[place] += came - left
                handling[place] += span.end - came
    return Figures(devices, merged.timeline.makespan, *map(tuple, (busy, others, flight, handling)))
