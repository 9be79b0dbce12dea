"""Why an operation of a trace began when it did: what came before it, and for which message it waited.

Operations are numbered row by row. Each has one before it on its device; a receive has, besides, the send of its
message; and operations that meet (an update for which replicas average their gradients, a bucket's all-reduce) end
when the last of them has begun, plus what the exchange takes.
"""

from array import array
from collections import defaultdict
from itertools import accumulate

from fewgpu.schedule.garbage import no_garbage
from fewgpu.trace import EXCHANGE, Span
from fewgpu.trace_files import AVERAGING, TraceError
from fewgpu.trace_merge import Merged

NONE = -1


class Causes:
    """The operations of a merged trace, by number, and what each had to wait for."""

    @no_garbage()
    def __init__(self, merged: Merged) -> None:
        self.merged = merged
        rows = merged.timeline.rows
        self.first = [*accumulate(map(len, rows), initial=0)]        #: the number of each row's first operation
        self.spans: list[Span] = [span for row in rows for span in row]
        self.rows = array('l', [row for row, spans in enumerate(rows) for _ in spans])
        self.before = array('l', range(-1, len(self.spans) - 1))     #: on the same device
        for start in self.first[:-1]:
            if start < len(self.spans):
                self.before[start] = NONE
        self.sender = array('l', [NONE]) * len(self.spans)           #: the send of a receive, or whatever it waits for
        self.at_end: set[int] = set()                                #: receives of what is there when that has ended
        self.arrived = array('d', [0.0]) * len(self.spans)           #: when what a receive waits for had come
        self.meeting: dict[int, tuple[int, ...]] = {}                #: all that an operation meets, it included
        (self._join_threads if merged.schedule['name'] == AVERAGING else self._match)()
        self._meet()
        self.order = self._order()

    def _match(self) -> None:
        """Find the send of every receive."""
        sent = {}
        for number, span in enumerate(self.spans):
            if span.op.kind == 'send':
                sent[self.merged.pipelines[self.rows[number]], span.op.message] = number
        for number, span in enumerate(self.spans):
            if span.op.kind == 'recv':
                row = self.rows[number]
                self.sender[number] = sent.get((self.merged.pipelines[row], span.op.message), NONE)
                # A simulated receive ends when its message comes, and takes no time if it was there.
                self.arrived[number] = self.merged.arrivals[row].get(number - self.first[row], span.end)

    def _join_threads(self) -> None:
        """Of data parallelism: a bucket is ready at some time of a backward, the averages when the last is through."""
        for row in range(0, len(self.first) - 1, 2):
            work, exchanges = (range(self.first[each], self.first[each + 1]) for each in (row, row + 1))
            backwards = [number for number in work if self.spans[number].op.kind == 'B']
            for number in exchanges:
                if self.spans[number].op.kind == 'recv':
                    self.arrived[number] = ready = self.merged.arrivals[row + 1].get(number - exchanges.start, 0.0)
                    inside = [b for b in backwards if self.spans[b].start <= ready]
                    self.sender[number] = inside[-1] if inside else NONE
            for number in work:
                if self.spans[number].op.kind == 'recv':
                    done = [a for a in exchanges if self.spans[a].op.kind == EXCHANGE
                            and self.spans[a].end <= self.spans[number].end]
                    if done:
                        self.sender[number], self.arrived[number] = done[-1], self.spans[done[-1]].end
                        self.at_end.add(number)

    def _meet(self) -> None:
        groups = defaultdict(list)
        for number, span in enumerate(self.spans):
            if span.op.kind in ('U', EXCHANGE):
                row = self.rows[number]
                groups[span.op[:3], self.merged.parts[row]].append(number)
        data_parallel = self.merged.schedule['name'] == AVERAGING
        for (op, _), members in groups.items():
            pipelines = {self.merged.pipelines[self.rows[number]] for number in members}
            if len(members) > 1 and (op[0] == EXCHANGE if data_parallel else len(pipelines) == len(members)):
                self.meeting |= dict.fromkeys(members, tuple(members))

    def _order(self) -> list[int]:
        """All operations, each after those that it waits for. Raises TraceError if some wait for each other."""
        at, ends = self.first[:-1], self.first[1:]
        at, order, done = list(at), [], bytearray(len(self.spans))
        waiting: dict[int, list[int]] = defaultdict(list)   # rows, by the operation that they wait for
        ready = list(range(len(at)))
        while ready:
            row = ready.pop()
            while at[row] < ends[row]:
                number = at[row]
                needed = [self.sender[number]] if number not in self.meeting else [
                    self.before[other] for other in self.meeting[number]]
                missing = next((one for one in needed if one != NONE and not done[one]), NONE)
                if missing != NONE:
                    waiting[missing].append(row)
                    break
                done[number] = 1
                order.append(number)
                at[row] += 1
                if number in waiting:
                    ready += waiting.pop(number)
        if len(order) < len(self.spans):
            row = next(row for row in range(len(at)) if at[row] < ends[row])
            raise TraceError(f'the operations of these traces wait for each other in a circle, as '
                             f'{self.spans[at[row]].op} of {self.merged.timeline.names[row]} does: they are not of '
                             f'the same step')
        return order
