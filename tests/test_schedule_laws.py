"""Laws of every schedule, over random sizes, and the published formulas of each."""

import pytest
from hypothesis import given, strategies as st

from fewgpu.schedule import (SCHEDULES, Op, Schedule, check, gems, gpipe, grid, interleaved,
                             one_f_one_b, pipedream, staleness, stashes, two_bw, v_shape, versions, versions_alive,
                             with_messages, with_updates, zero_bubble)
from fewgpu.schedule.waits import verify_no_deadlock
from fewgpu.simulate import Costs, simulate
from tests.schedules import FLUSHING, dressed, is_right, schedules

SIZES = st.integers(1, 8), st.integers(1, 20)   # stages, micro-batches


def at_peak(row: tuple[Op, ...]) -> int:
    """The most forwards of a row whose backward is still to come."""
    return max(sum(op.kind == 'F' for op in row[:end]) - sum(op.kind in 'BI' for op in row[:end])
               for end in range(len(row) + 1))


@given(dressed())
def test_every_schedule_is_right_whatever_the_passes_add(schedule: Schedule) -> None:
    check(schedule)
    assert is_right(schedule.select(lambda op: op.message is None)), grid(schedule)


@given(dressed(messages=True))
def test_nobody_waits_for_ever_with_buffered_or_with_paired_sends(schedule: Schedule) -> None:
    verify_no_deadlock(schedule, sends='buffered')
    verify_no_deadlock(schedule, sends='paired')


@given(schedules())
def test_each_stage_takes_the_micro_batches_in_order(schedule: Schedule) -> None:
    """But GPipe's backwards go the other way: the newest graph first."""
    for row in schedule.rows:
        for stage, kind in {(op.stage, op.kind) for op in row}:
            taken = [op.micro_batch for op in row if (op.kind, op.stage) == (kind, stage)]
            assert taken == sorted(taken, reverse=(schedule.name, kind) == ('gpipe', 'B'))


@given(st.sampled_from((2, 4, 5, 6, 7, 8, 3)), st.integers(1, 40))
def test_a_v_idles_as_long_as_gpipe_or_up_to_half_as_long_again_but_for_three_devices(n: int, m: int) -> None:
    v = simulate(v_shape(2 * n, m), Costs(F=1, B=2))
    work, of_gpipe = 2 * 3 * m, 2 * 3 * (n - 1)   # arXiv 1811.06965, section 2.3: n - 1 slots
    if n == 3:
        assert v.bubble > 1 / 7
    else:
        assert v.makespan - work <= of_gpipe * (1.0 if n in (2, 4) else 1.5)


@given(schedules([name for name in SCHEDULES if name not in ('gems', 'v-shape')]))
def test_stages_go_round_the_devices(schedule: Schedule) -> None:
    assert schedule.device_of == {s: s % len(schedule.rows) for s in range(schedule.stages)}


@given(schedules())
def test_every_schedule_has_the_name_it_is_found_under(schedule: Schedule) -> None:
    assert schedule.name in SCHEDULES


# Stashes


@given(*SIZES)
def test_gpipe_stashes_all_micro_batches(n: int, m: int) -> None:
    assert stashes(gpipe(n, m)) == [m] * n


@given(*SIZES)
def test_1f1b_stashes_a_micro_batch_for_each_stage_from_there_on(n: int, m: int) -> None:
    assert stashes(one_f_one_b(n, m)) == [min(m, n - s) for s in range(n)]
    assert stashes(pipedream(n, m)) == stashes(one_f_one_b(n, m))
    assert stashes(two_bw(n, n * m)) == stashes(one_f_one_b(n, n * m))


@given(*SIZES)
def test_zero_bubble_stashes_as_1f1b_does_or_nearly_twice_as_much(n: int, m: int) -> None:
    """arXiv 2401.10241, table 2; there stages count from 1. See test_simulate for what W needs."""
    assert stashes(zero_bubble(n, m, variant='H1')) == [min(m, n - s) for s in range(n)]
    assert stashes(zero_bubble(n, m, variant='H2')) == [min(m, 2 * (n - s) - 1) for s in range(n)]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(2, 4))
def test_an_interleaved_device_stashes_its_warm_up_and_one(n: int, groups: int, v: int) -> None:
    """Megatron's warm-up, in all stages of the device together."""
    for device, row in enumerate(interleaved(n, groups * n, v=v).rows):
        assert at_peak(row) == min(groups * n * v, (n - device - 1) * 2 + (v - 1) * n + 1)


@given(schedules())
def test_stashes_are_counted_a_stage(schedule: Schedule) -> None:
    assert stashes(schedule) == [
        at_peak([op for row in schedule.rows for op in row if op.stage == stage])
        for stage in range(schedule.stages)]


# Weight versions


@given(schedules(FLUSHING))
def test_a_flush_leaves_no_gradient_stale_and_needs_one_version(schedule: Schedule) -> None:
    schedule = with_updates(schedule)
    assert set(staleness(schedule).values()) == {0}
    assert versions_alive(schedule) == [1] * schedule.stages
    assert all(version == (op.kind == 'U') for op, version in versions(schedule).items())


@given(*SIZES)
def test_pipedream_is_late_by_the_stages_behind(n: int, m: int) -> None:
    schedule = pipedream(n, m)
    assert staleness(schedule) == {(s, i): min(i, n - 1 - s) for s in range(n) for i in range(m)}
    used = versions(schedule)
    for s in range(n):
        for i in range(m):
            assert used[Op('F', s, i)] == used[Op('B', s, i)] == max(i - (n - 1 - s), 0)
            assert used[Op('U', s, i)] == i + 1


@given(st.integers(1, 8), st.integers(0, 8))
def test_pipedream_keeps_a_version_for_each_stage_from_there_on(n: int, more: int) -> None:
    assert versions_alive(pipedream(n, 2 * n + more)) == [n - s for s in range(n)]


@given(st.integers(1, 6), st.integers(0, 3), st.integers(1, 5))
def test_2bw_is_late_by_one_update_and_keeps_two_versions(n: int, more: int, batches: int) -> None:
    every = n + more
    schedule = two_bw(n, every * batches, update_every=every)
    assert staleness(schedule) == {(s, i): int(i >= every) for s in range(n)
                                   for i in range(every * batches)}
    assert versions_alive(schedule) == [min(batches, 2)] * n


def test_2bw_takes_the_published_versions() -> None:
    """arXiv 2006.09503, section 3.1: 4 micro-batches an update, micro-batches counted from 1."""
    schedule = two_bw(4, 16)
    for stage in range(4):
        assert [schedule.version(stage, k - 1) for k in range(1, 17)] == [0] * 8 + [1] * 4 + [2] * 4


@given(schedules(('pipedream', '2bw')))
def test_an_asynchronous_schedule_updates_itself(schedule: Schedule) -> None:
    assert with_updates(schedule) == schedule
    updates = [op for op in schedule if op.kind == 'U']
    assert len(updates) == schedule.stages * schedule.micro_batches // schedule.update_every
    assert len(set(updates)) == len(updates)


# Sizes, and what is printed


@pytest.mark.parametrize('name', SCHEDULES)
@pytest.mark.parametrize('sizes', [(0, 1), (1, 0), (-2, 2)])
def test_no_stage_and_no_micro_batch_is_refused(name: str, sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match='at least one stage and one micro-batch'):
        SCHEDULES[name](*sizes)


@pytest.mark.parametrize('make, remedy', [
    (lambda: interleaved(4, 6), 'take 8, or 1f1b'),
    (lambda: interleaved(4, 3), 'take 4, or 1f1b'),
    (lambda: interleaved(4, 4, v=0), 'at least one stage'),
    (lambda: two_bw(4, 6), 'take 8'),
    (lambda: two_bw(4, 6, update_every=3), 'at least as many micro-batches as there are stages, 4'),
    (lambda: zero_bubble(2, 2, variant='H3'), "'H1' or 'H2'"),
])
def test_what_a_schedule_cannot_do_is_refused_with_a_remedy(make, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        make()


@given(*SIZES)
def test_one_stage_a_device_interleaved_is_1f1b(n: int, groups: int) -> None:
    assert interleaved(n, n * groups, v=1).rows == one_f_one_b(n, n * groups).rows


@pytest.mark.parametrize('make, schedule', [
    (gpipe, gpipe(2, 3)),
    (one_f_one_b, one_f_one_b(3, 4)),
    (interleaved, interleaved(2, 2)),
    (zero_bubble, zero_bubble(3, 4)),
    (pipedream, pipedream(3, 4)),
    (two_bw, two_bw(2, 4)),
    (gems, gems(2, 2)),
    (pipedream, pipedream(2, 4, replicas=(2, 1))),
])
def test_the_grid_in_a_docstring_is_what_is_printed(make, schedule: Schedule) -> None:
    for line in grid(schedule).splitlines():
        assert line in make.__doc__


@given(schedules())
def test_no_two_cells_of_a_grid_look_the_same(schedule: Schedule) -> None:
    for shown, row in zip(grid(with_messages(schedule)).splitlines(), with_messages(schedule).rows):
        cells = shown.split(' | ')[1].split()
        assert len(cells) == len(set(cells)) == len(row)
