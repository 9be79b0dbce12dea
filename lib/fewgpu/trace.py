"""What happened, or would happen: a timeline of operations a device.

A simulated schedule and a real run give the same type, so the same picture shows both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

from fewgpu.schedule import Op

WAITS = ('send', 'recv')   # a device that sends or receives is not busy
EXCHANGE = 'A'             # of gradients: what replicas do besides the operations of a schedule


class Span(NamedTuple):
    """One operation, from `start` to `end` (seconds)."""

    op: Op
    start: float
    end: float
    live: int | None = None      #: bytes that live on the device at the end, if they are counted
    version: int | None = None   #: of the weights that were used, or, by an update, made

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Spans in order, a row a device; times count from the first start."""

    rows: tuple[tuple[Span, ...], ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Iterable[tuple]], names: Iterable[str]) -> 'Timeline':
        """From (operation, time stamp, time stamp, ...), stamps as `Device.now` gave them, and then
        the further fields of a `Span`."""
        seconds = _in_seconds(rows)
        first = min((start for row in seconds for _, start, *_ in row), default=0.0)
        return cls(tuple(tuple(Span(op, start - first, end - first, *more)
                               for op, start, end, *more in row) for row in seconds), tuple(names))

    def __repr__(self) -> str:
        operations = sum(map(len, self.rows))
        return f'<Timeline of {len(self.rows)} devices: {operations} operations in {self.makespan:.4g} s>'

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return max((span.end for row in self.rows for span in row), default=0.0)

    def busy(self, device: int) -> float:
        """Seconds in which the device computed, rather than waited, sent or received."""
        return sum(span.seconds for span in self.rows[device] if span.op.kind not in WAITS)

    def peak(self, device: int) -> int | None:
        """Most bytes that lived on the device at the end of an operation, if they were counted."""
        return max((span.live for span in self.rows[device] if span.live is not None), default=None)

    @cached_property
    def busy_share(self) -> list[float]:
        """Of the makespan, for every device."""
        return [self.busy(device) / (self.makespan or 1.0) for device in range(len(self.rows))]

    @property
    def bubble(self) -> float:
        """The idle share of all devices together: 1 minus the mean busy share."""
        return 1.0 - sum(self.busy_share) / len(self.rows)

    def to_html(self, path: str | PathLike[str] | None = None, **options: str) -> str:
        """A page to zoom, hover and step through; see `fewgpu.trace_html.to_html`."""
        from fewgpu.trace_html import to_html
        return to_html(self, path, **options)

    def to_chrome(self, path: str | PathLike[str] | None = None) -> str:
        """Trace events, for Perfetto; see `fewgpu.trace_chrome.to_chrome`."""
        from fewgpu.trace_chrome import to_chrome
        return to_chrome(self, path)


def _in_seconds(rows: Iterable[Iterable[tuple]]) -> list[list[tuple]]:
    """GPU events become seconds. Rows of the same GPU share a clock; the clocks of several GPUs,
    and of the CPU, are taken to start together, which holds to within a kernel launch."""
    rows = [list(row) for row in rows]
    clocks: dict[Any, Any] = {}   # device -> an event from which its times are counted
    seconds, clock_of = [], []
    for row in rows:
        device = getattr(row[0][1], 'device', 'cpu') if row else None
        if row and device != 'cpu':
            first = clocks.setdefault(device, row[0][1])
            row[-1][2].synchronize()
            row = [(op, first.elapsed_time(start) / 1e3, first.elapsed_time(end) / 1e3, *more)
                   for op, start, end, *more in row]
        seconds.append(row)
        clock_of.append(device)
    starts = {device: min(row[0][1] for row, other in zip(seconds, clock_of) if other == device)
              for device in clock_of if device is not None}
    return [[(op, start - starts[device], end - starts[device], *more)
             for op, start, end, *more in row]
            for row, device in zip(seconds, clock_of)]
