"""A stage may live on several devices: placement, shared updates, PipeDream with replicas; virtual time."""

from dataclasses import replace
from math import ceil, inf, lcm

import pytest
from hypothesis import event, given, settings, strategies as st

from fewgpu.schedule import (SHARE, Op, Schedule, ScheduleError, check, gems, grid, pipedream, staleness,
                             stashes, versions, versions_alive, with_messages, with_updates)
from fewgpu.schedule.waits import SENDS, verify_no_deadlock
from fewgpu.simulate import Costs, simulate
from tests import delayed
from tests.schedules import dressed, is_right
from tests.test_schedule_checks import mutate, refusal

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=4)
PUBLISHED = [(7, 1), (2, 1, 1), (9, 5, 1, 1), (15, 1)]   # arXiv 1806.03377, table 1; SOSP'19, table 1


@st.composite
def replicated(draw, counts: st.SearchStrategy = COUNTS, most: int = 3) -> Schedule:
    """PipeDream with random replicas, for a few rounds."""
    replicas = draw(counts)
    return pipedream(len(replicas), lcm(*replicas) * draw(st.integers(1, most)), replicas=replicas)


def replicas_of(schedule: Schedule) -> list[int]:
    return [len(devices) for devices in schedule.devices_of.values()]


# Placement


@given(replicated())
def test_replicas_take_the_mini_batches_in_turn_forward_and_backward(schedule: Schedule) -> None:
    first = 0
    for s, r in enumerate(replicas_of(schedule)):
        assert schedule.devices_of[s] == tuple(range(first, first + r))
        for k in range(r):
            for kind in 'FB':
                assert [op.micro_batch for op in schedule.rows[first + k] if op.kind == kind] == list(
                    range(k, schedule.micro_batches, r))
        first += r
    assert len(schedule.rows) == first


@settings(max_examples=60)
@given(dressed(replicated()))
def test_any_numbers_of_replicas_make_a_right_schedule(schedule: Schedule) -> None:
    check(schedule)
    assert is_right(schedule.select(lambda op: op.message is None)), grid(schedule)


@pytest.mark.parametrize('counts', PUBLISHED)
def test_the_published_configurations_come_to_their_end_and_admit_noam_mini_batches(counts) -> None:
    schedule = pipedream(len(counts), 2 * lcm(*counts), replicas=counts)
    check(schedule)
    for sends in SENDS[:2]:
        verify_no_deadlock(with_messages(schedule), sends=sends)
    for row in schedule.rows[:counts[0]]:
        noam = ceil(sum(counts) / counts[0])
        assert ''.join(op.kind for op in row).index('B') == min(noam, sum(op.kind == 'F' for op in row))
    assert simulate(schedule, Costs(latency=1.0, message=1, share=5, bandwidth=1.0)).makespan > 0


@settings(max_examples=300)
@given(dressed(st.one_of(replicated(st.lists(st.integers(1, 3), min_size=1, max_size=2), most=2),
                         st.builds(gems, st.integers(1, 3), st.integers(1, 4))), messages=False), st.data())
def test_a_mutation_is_refused_exactly_when_it_is_wrong(schedule: Schedule, data) -> None:
    mutant = mutate(data, schedule)
    right, why = is_right(mutant), refusal(mutant)
    event('right' if right else 'wrong')
    assert right == (why is None), f'{why or "not refused"}\n{grid(mutant)}'
    assert (why is None) == (refusal(with_messages(mutant)) is None), grid(mutant)


@given(replicated())
def test_before_an_update_each_replica_hears_from_every_other(schedule: Schedule) -> None:
    whole = with_messages(schedule)
    sent = [op.message for op in whole if op.kind == 'send' and op.message.what == SHARE]
    assert len({*sent}) == len(sent)
    assert {*sent} == {op.message for op in whole if op.kind == 'recv' and op.message.what == SHARE}
    for device, row in enumerate(whole.rows):
        others = {*schedule.devices_of[row[0].stage]} - {device}
        for at, op in enumerate(row):
            if op.kind == 'U':
                before = row[at - 2 * len(others):at]
                assert {o.message.receiver for o in before if o.kind == 'send'} == others
                assert {o.message.sender for o in before if o.kind == 'recv'} == others
                assert {o.micro_batch for o in before} <= {op.micro_batch}


@given(st.integers(2, 5), st.integers(2, 6))
def test_updates_that_are_left_to_the_pass_do_not_wait_for_each_other(n: int, m: int) -> None:
    """Two devices that hold the same two stages update them in the same order."""
    bare = gems(n, m).select(lambda op: op.kind != 'U')
    check(with_messages(with_updates(bare)))


def test_updates_in_different_orders_wait_for_each_other_and_say_so() -> None:
    rows = [list(row) for row in gems(2, 2).rows]
    rows[1][-2:] = reversed(rows[1][-2:])
    with pytest.raises(ScheduleError, match='waits for G from stage . on device .'):
        check(replace(gems(2, 2), rows=tuple(map(tuple, rows))))


def test_updates_that_differ_between_replicas_are_explained() -> None:
    schedule = pipedream(2, 4, replicas=(2, 1))
    renamed = tuple(op._replace(micro_batch=0) if op == Op('U', 0, 1) else op for op in schedule.rows[1])
    with pytest.raises(ScheduleError, match='stage 0 lives on the devices 0, 1 and has other updates'):
        check(replace(schedule, rows=(schedule.rows[0], renamed, schedule.rows[2])))
    doubled = replace(pipedream(2, 1), rows=tuple((*row, Op('U', 1, 0)) if device == 0 else row
                                                  for device, row in enumerate(pipedream(2, 1).rows)))
    with pytest.raises(ScheduleError, match='the mean of 2 micro-batches, .*, and there are 1'):
        check(doubled)


# Weight versions


@given(replicated())
def test_all_replicas_see_the_same_updates_late_by_the_rounds_behind(schedule: Schedule) -> None:
    counts, used = replicas_of(schedule), versions(schedule)
    for i in range(schedule.micro_batches):
        expected = delayed.replicated(counts, i)
        for s, r in enumerate(counts):
            assert used[Op('F', s, i)] == used[Op('B', s, i)] == expected[s]
            assert staleness(schedule)[s, i] == i // r - expected[s]


@given(COUNTS, st.integers(2, 4))
def test_a_stage_keeps_as_many_versions_and_stashes_as_mini_batches_are_on_their_way(counts, more) -> None:
    noam = [ceil(sum(counts[s:]) / r) for s, r in enumerate(counts)]
    schedule = pipedream(len(counts), lcm(*counts) * more * max(noam), replicas=counts)
    assert stashes(schedule) == noam
    assert versions_alive(schedule) == noam


@pytest.mark.parametrize('counts, micro_batches, why', [
    ((2, 1, 1), 4, 'for each of the 2 stages'), ((0, 1), 4, 'at least 1'), ((2, 3), 9, 'take 12')])
def test_replicas_that_cannot_be_are_refused(counts, micro_batches, why) -> None:
    with pytest.raises(ValueError, match=why):
        pipedream(2, micro_batches, replicas=counts)


# In virtual time


SECONDS = st.floats(0.0, 10.0)


@given(st.one_of(replicated(), st.builds(gems, st.integers(1, 5), st.integers(1, 6))),
       SECONDS, SECONDS, SECONDS, SECONDS, st.integers(0, 9), st.sampled_from([inf, 1.0, 10.0]))
def test_an_update_waits_for_all_replicas(schedule, f, b, u, latency, size, bandwidth) -> None:
    costs = Costs(F=f, B=b, U=u, latency=latency, share=size, bandwidth=bandwidth)
    timeline, whole = simulate(schedule, costs), simulate(with_messages(schedule), costs)
    for row, shown in zip(timeline.rows, whole.rows):   # messages are shown, and change nothing
        assert list(row) == [span for span in shown if span.op.message is None]
    ends: dict[tuple, dict[int, float]] = {}   # of what comes before an update, on every device
    for device, row in enumerate(timeline.rows):
        for before, span in zip(row, row[1:]):
            if span.op.kind == 'U':
                ends.setdefault(span.op, {})[device] = before.end
    for device, row in enumerate(timeline.rows):
        for span in row:
            if span.op.kind == 'U':
                ready = [end + (latency + size / bandwidth) * (other != device)
                         for other, end in ends[span.op].items()]
                assert span.start >= max(ready) * (1 - 1e-9)
                assert len(ready) > 1 or span.start == max(ready)


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20))
def test_a_first_stage_with_enough_replicas_keeps_the_second_busy(r: int, f: int, b: int) -> None:
    """7-1, 15-1: r replicas of a stage that takes r times as long; then a mini-batch ends every f + b."""
    costs = Costs(F=[r * f, f], B=[r * b, b])
    fewer, more = (simulate(pipedream(2, rounds * r, replicas=(r, 1)), costs).makespan for rounds in (4, 9))
    assert more - fewer == 5 * r * (f + b)


@given(st.integers(1, 20), st.integers(1, 20))
def test_with_noam_mini_batches_two_one_one_idles_a_third_of_the_time(f: int, b: int) -> None:
    """Each stage as fast as the others; the replicas of the first wait for each other after every round."""
    costs = Costs(F=[2 * f, f, f], B=[2 * b, b, b])
    fewer, more = (simulate(pipedream(3, m, replicas=(2, 1, 1)), costs).makespan for m in (20, 40))
    assert more - fewer == 20 * (f + b) * 1.5
