"""Laws of clocks: what messages tell of their offsets is true, and no message comes before it left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.clocks import align, bounds_of

EXACT = 1e-9   # seconds: clocks here show up to a thousand


@st.composite
def exchanges(draw, least=1):
    """(true offsets, stamps by rank as in a trace, messages (from, to, sent, came) by the clocks)."""
    count = draw(st.integers(2, 6))
    offsets = draw(st.lists(st.floats(-500, 500), min_size=count, max_size=count))
    pairs = {(a, draw(st.integers(0, a - 1))) for a in range(1, count)}   # a tree, so that all are connected
    pairs |= set(draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=4)))
    stamps, messages = [{} for _ in offsets], []
    for a, b in {pair for x, y in pairs if x != y for pair in ((x, y), (y, x))}:
        times = draw(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5)), min_size=least, max_size=5))
        sent = [(number, time + offsets[a]) for number, (time, _) in enumerate(times)]
        came = [(number, time + delay + offsets[b]) for number, (time, delay) in enumerate(times)]
        stamps[a].setdefault(b, {'sent': [], 'came': []})['sent'] = sent
        stamps[b].setdefault(a, {'sent': [], 'came': []})['came'] = came
        messages += [(a, b, left, there) for (_, left), (_, there) in zip(sent, came)]
    return offsets, stamps, messages


def aligned(stamps):
    return align(bounds_of(stamps, range(len(stamps))), [0.0] * len(stamps))


@given(exchanges())
def test_the_true_offset_is_within_the_uncertainty(case):
    offsets, stamps, _ = case
    clocks = aligned(stamps)

    assert not clocks.unknown and clocks.drift < EXACT
    for true, found, unsure in zip(offsets, clocks.offsets, clocks.uncertainties):
        assert abs(true - offsets[0] - found) <= unsure + EXACT


@given(exchanges(least=0))
def test_no_message_comes_before_it_left(case):
    _, stamps, messages = case
    clocks = aligned(stamps)

    for a, b, left, came in messages:
        if clocks.uncertainties[a] < np.inf and clocks.uncertainties[b] < np.inf:
            assert came - clocks.offsets[b] >= left - clocks.offsets[a] - EXACT


@given(exchanges(), st.data())
def test_a_clock_that_shows_more_has_so_much_more_offset(case, data):
    offsets, stamps, _ = case
    which, more = data.draw(st.integers(0, len(offsets) - 1)), data.draw(st.floats(-1000, 1000))
    before = aligned(stamps)
    stamps[which] = {peer: {way: [(number, time + more) for number, time in times] for way, times in both.items()}
                     for peer, both in stamps[which].items()}
    after = aligned(stamps)

    assert after.uncertainties == pytest.approx(before.uncertainties, abs=EXACT)
    for rank, (old, new) in enumerate(zip(before.offsets, after.offsets)):
        assert new - old == pytest.approx(more * ((rank == which) - (which == 0)), abs=EXACT)


@given(exchanges(), st.data())
def test_fewer_messages_do_not_make_it_surer(case, data):
    _, stamps, _ = case
    before = aligned(stamps)
    for own in stamps:
        for both in own.values():
            both['sent'] = both['sent'][data.draw(st.integers(0, 1)):]
    after = aligned(stamps)

    assert all(new >= old - EXACT for old, new in zip(before.uncertainties, after.uncertainties))


@given(st.floats(-500, 500), st.lists(st.floats(0, 5), min_size=1), st.lists(st.floats(0, 5), min_size=1))
def test_of_two_ranks_it_is_the_minimum_delay_estimate(offset, there, back):
    stamps = [{1: {'sent': [(k, 0.0) for k, _ in enumerate(there)], 'came': [*enumerate(back)]}},
              {0: {'sent': [(k, offset) for k, _ in enumerate(back)],
                   'came': [(k, delay + offset) for k, delay in enumerate(there)]}}]
    clocks = aligned(stamps)

    assert clocks.offsets[1] == pytest.approx(offset + (min(there) - min(back)) / 2, abs=EXACT)
    assert clocks.uncertainty == pytest.approx((min(there) + min(back)) / 2, abs=EXACT)


@given(exchanges(), st.data())
def test_who_has_no_messages_both_ways_is_named_and_kept_behind_what_it_received(case, data):
    offsets, stamps, _ = case
    silent = data.draw(st.integers(1, len(offsets) - 1))
    for both in stamps[silent].values():
        both['sent'] = []   # it receives, and nothing that it sends arrives
    clocks = aligned(stamps)

    assert silent in clocks.unknown
    for peer, both in stamps[silent].items():
        left = dict(stamps[peer][silent]['sent'])
        if peer not in clocks.unknown:
            assert all(came - clocks.offsets[silent] >= left[number] - clocks.offsets[peer] - EXACT
                       for number, came in both['came'])


def test_who_has_none_at_all_starts_with_the_first():
    clocks = align(bounds_of([{}, {}], range(2)), [3.0, 10.0])

    assert clocks.unknown == [1] and clocks.offsets == (0.0, 7.0)


@given(st.lists(st.floats(-500, 500), min_size=2, max_size=6), st.data())
def test_a_meeting_bounds_all_pairs(offsets, data):
    ranks, times = range(len(offsets)), st.floats(0, 5)
    meetings = []
    for number in range(3):
        starts = [data.draw(times) for _ in ranks]
        meetings.append([(start, max(starts) + data.draw(times)) for start in starts])
    told = {rank: {number: tuple(time + offsets[rank] for time in each[rank]) for number, each in enumerate(meetings)}
            for rank in ranks}
    clocks = align(bounds_of([{} for _ in ranks], ranks, [(tuple(ranks), told)]), [0.0] * len(ranks))

    assert not clocks.unknown
    for true, found, unsure in zip(offsets, clocks.offsets, clocks.uncertainties):
        assert abs(true - offsets[0] - found) <= unsure + EXACT


@given(st.floats(0.001, 5), st.integers(2, 6))
def test_clocks_that_contradict_each_other_are_told_and_still_aligned(much, count):
    bounds = np.full((count, count), 1.0)
    bounds[0, 1] = bounds[1, 0] = -much   # each message came before it left, whatever the offset
    clocks = align(bounds, [0.0] * count)

    assert much * 0.99 <= clocks.drift <= 2.01 * much
    assert all(np.isfinite(clocks.offsets)) and not clocks.unknown
