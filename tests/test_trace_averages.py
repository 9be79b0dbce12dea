"""Laws of the traces of data parallelism, against a small model of it: buckets leave while the backward goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.causes import Causes
from fewgpu.critical_path import critical_path, length
from fewgpu.replay import Change, Replay
from fewgpu.schedule import Message, Op
from fewgpu.trace_advice import SLOWER, advise
from fewgpu.trace_figures import figures
from fewgpu.trace_files import AVERAGES, AVERAGING, BUCKET, RankTrace, Recorded, Row
from fewgpu.trace_merge import merge

NEAR = dict(rel=1e-9, abs=1e-9)


def averaging(forward, backward, shares, cost, offsets=None, exact=True):
    """The traces of ranks that take so long (seconds, one a rank); bucket k is ready after `shares[k]` of a backward,
    and its all-reduce takes `cost` from when the last rank has begun it. `exact`: a meeting tells all clocks."""
    count = len(forward)
    offsets = offsets or [0.0] * count
    exchanges, free, meetings = [[] for _ in forward], [0.0] * count, [[] for _ in forward]
    for k, share in enumerate(shares):
        ready = [f + share * b for f, b in zip(forward, backward)]
        starts = [max(time, before) for time, before in zip(ready, free)]
        end = max(starts) + cost
        for rank in range(count):
            exchanges[rank].append((Op('recv', 0, k, Message(BUCKET, 0, 0, k)), free[rank], starts[rank], ready[rank]))
            exchanges[rank].append((Op('A', 0, k), starts[rank], end, None))
            meetings[rank].append((k, starts[rank] + offsets[rank], end + offsets[rank]))
        free = [end] * count
    traces = {}
    for rank, (f, b) in enumerate(zip(forward, backward)):
        done = max(f + b, free[rank])
        work = [(Op('F', 0, 0), 0.0, f, None), (Op('B', 0, 0), f, f + b, None),
                (Op('recv', 0, 0, Message(AVERAGES, 0, 0, 0)), f + b, done, None), (Op('U', 0, 0), done, done + 0.5, None)]
        rows = tuple(Row(2 * rank + which, name, tuple(
            Recorded(op, start + offsets[rank], end + offsets[rank],
                     arrived=None if came is None else came + offsets[rank]) for op, start, end, came in spans))
            for which, (name, spans) in enumerate(((f'rank {rank}', work), (f'rank {rank} link', exchanges[rank]))))
        everybody = tuple(range(count))
        traces[f'rank-{rank}.json'] = RankTrace(
            rank, everybody, everybody, 'a', 1, {'name': AVERAGING, 'stages': 1, 'micro_batches': 1}, rows,
            meetings=[(everybody, meetings[rank] + [(99, offsets[rank], offsets[rank])] * exact)])
    return traces


@st.composite
def steps(draw):
    """(forward, backward, shares, cost)."""
    count = draw(st.integers(2, 5))
    each = st.lists(st.floats(0.5, 5), min_size=count, max_size=count)
    shares = sorted(draw(st.lists(st.floats(0.1, 1), min_size=0, max_size=4)))
    return draw(each), draw(each), [*shares, 1.0], draw(st.floats(0.01, 2))


def makespan(forward, backward, shares, cost):
    return max(row.spans[-1].end for trace in averaging(forward, backward, shares, cost).values() for row in trace.rows)


@given(steps())
def test_replays_are_the_model(step):
    forward, backward, shares, cost = step
    causes = Causes(merge(averaging(*step)))
    replay = Replay(causes)

    assert replay.ends() == pytest.approx([span.end for span in causes.spans], **NEAR)
    assert replay.makespan(Change(flight=0.0)) == pytest.approx(makespan(forward, backward, shares, 0.0), **NEAR)
    mean = [[sum(each) / len(each)] * len(each) for each in (forward, backward)]
    equal = makespan(*step) / makespan(*mean, shares, cost)
    factor = {one.change: one.factor for one in advise(causes)}.get('equal ranks', 1.0)
    assert factor == pytest.approx(max(equal, 1.0), abs=0.0051)


@given(steps())
def test_the_path_is_the_step(step):
    path = critical_path(Causes(merge(averaging(*step))))

    assert length(path) == pytest.approx(makespan(*step), **NEAR)
    assert all(one.end == pytest.approx(following.start, **NEAR) for one, following in zip(path, path[1:]))


@given(steps(), st.data())
def test_whatever_the_clocks_show_the_ranks_meet(step, data):
    offsets = data.draw(st.lists(st.floats(-900, 900), min_size=len(step[0]), max_size=len(step[0])))
    merged, exact = (merge(averaging(*step, offsets, known)) for known in (False, True))

    for true, found, unsure in zip(offsets, merged.clocks.offsets, merged.clocks.uncertainties):
        assert abs(true - offsets[0] - found) <= unsure + 1e-9
    assert exact.clocks.uncertainty < 1e-9 and not merged.clocks.unknown


@given(steps(), st.data())
def test_a_straggler_is_named_if_there_is_one(step, data):
    forward, backward, shares, cost = step
    which = data.draw(st.integers(0, len(forward) - 1))
    slow = [5.0 if rank == which else 1.0 for rank in range(len(forward))]
    advice = [one.change for one in advise(Causes(merge(averaging(slow, slow, shares, cost))))]

    assert [change for change in advice if 'as fast as' in change] == [
        f'rank {which} as fast as others that do the same work']
    alike = [1.0] * len(forward)
    assert not any('as fast as' in one.change or 'equal' in one.change
                   for one in advise(Causes(merge(averaging(alike, alike, shares, cost))))) and SLOWER > 1


@given(steps())
def test_devices_are_the_threads_that_compute(step):
    forward, backward, shares, cost = step
    one = figures(Causes(merge(averaging(*step))))

    assert one.devices == tuple(range(0, 2 * len(forward), 2))
    assert one.busy == pytest.approx([f + b + 0.5 for f, b in zip(forward, backward)], **NEAR)
    waits = [max(one.makespan - 0.5 - f - b, 0.0) for f, b in zip(forward, backward)]
    assert [a + b for a, b in zip(one.others, one.flight)] == pytest.approx(waits, **NEAR)
    assert max(one.flight) <= cost + 1e-9
