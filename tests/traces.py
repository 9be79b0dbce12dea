"""Traces of ranks that never ran: schedules in virtual time, each row seen by a clock of its own."""

from hypothesis import strategies as st

from fewgpu.schedule import SCHEDULES, with_messages, with_recompute, with_updates
from fewgpu.schedule.named import schedule_maker
from fewgpu.simulate import Costs, simulate
from fewgpu.trace_files import RankTrace, Recorded, Row
from fewgpu.trace_merge import Merged

FLUSHING = ('gpipe', '1f1b', 'interleaved', 'zb-h1', 'v-shape')


@st.composite
def schedules(draw, names=tuple(sorted(SCHEDULES)), most=4):
    """With messages, updates, and perhaps recompute."""
    name, stages = draw(st.sampled_from(names)), 2 * draw(st.integers(1, most // 2))
    chunks = stages * draw(st.integers(1, 3))
    again = draw(st.sampled_from(('always', 'except_last', 'never')))
    plan = schedule_maker(name, stages)(chunks)
    split = any(op.kind == 'I' for op in plan)
    return with_messages(with_updates(with_recompute(plan, 'never' if split else again)))


@st.composite
def costs(draw, stages, **more):
    """Random, and no operation is free."""
    each = st.lists(st.floats(0.1, 3), min_size=stages, max_size=stages)
    return Costs(**{kind: draw(each) for kind in 'FBIWRU'}, **{'latency': draw(st.floats(0, 1)), **more})


def arrivals(plan, timeline, latency):
    """Of every row: when each message had come, where only latency delays them."""
    sent = {span.op.message: (device, span.start) for device, row in enumerate(timeline.rows) for span in row
            if span.op.kind == 'send'}
    return tuple({place: sent[span.op.message][1] + (latency if sent[span.op.message][0] != device else 0.0)
                  for place, span in enumerate(row) if span.op.kind == 'recv' and span.op.message in sent}
                 for device, row in enumerate(timeline.rows))


def simulated(plan, price):
    """A merged trace whose bandwidth has no limit."""
    timeline = simulate(plan, price)
    rows = len(timeline.rows)
    return Merged(timeline, {'name': plan.name, 'stages': plan.stages, 'micro_batches': plan.micro_batches},
                  ((0,),) * rows, (0,) * rows, arrivals(plan, timeline, price.latency))


def ranks_of(plan, price, offsets, *, run='a', step=1):
    """What every rank would have saved, its clock `offsets[rank]` ahead. Besides the schedule's messages each rank
    sends one to every other at the start, as real ones do."""
    merged = simulated(plan, price)
    count = len(merged.timeline.rows)
    sent = [{peer: [(0, offset)] for peer in range(count)} for offset in offsets]
    came = [{peer: [(0, offset + price.latency)] for peer in range(count)} for offset in offsets]
    traces = {}
    for rank, (row, offset) in enumerate(zip(merged.timeline.rows, offsets)):
        for place, span in enumerate(row):
            if span.op.kind == 'send' and (peer := plan.receiver_of(span.op.message)) not in (None, rank):
                number = len(sent[rank][peer])
                sent[rank][peer].append((number, span.start + offset))
                came[peer][rank].append((number, span.start + price.latency + offsets[peer]))
    for rank, (row, offset) in enumerate(zip(merged.timeline.rows, offsets)):
        had = merged.arrivals[rank]
        spans = tuple(Recorded(op, start + offset, end + offset, int(live), version,
                               had[place] + offset if place in had else None)
                      for place, (op, start, end, live, version) in enumerate(row))
        traces[f'rank-{rank}.json'] = RankTrace(
            rank, tuple(range(count)), tuple(range(count)), run, step, dict(merged.schedule),
            (Row(rank, f'rank {rank}', spans),),
            stamps={peer: {'sent': sent[rank][peer], 'came': came[rank][peer]}
                    for peer in range(count) if peer != rank})
    return traces
