"""The simulator keeps the laws of time and memory, and gives the published figures."""

import itertools
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fewgpu.schedule import (SCHEDULES, Op, Schedule, ScheduleError, gpipe, grid, interleaved,
                             one_f_one_b, pipedream, stashes, two_bw, with_messages, with_recompute,
                             with_updates, zero_bubble)
from fewgpu.simulate import Costs, allowed_speed_up, bubble_rate, simulate
from fewgpu.trace import Span, Timeline
from tests.schedules import dressed, needs, schedules, used_by

SECONDS = st.floats(0.0, 10.0)
SIZES = st.integers(1, 8), st.integers(1, 20)   # stages, micro-batches
BARE = dressed(schedules(most=4), messages=False)


@st.composite
def costs(draw, stages: int = 12) -> Costs:
    """Random, for every stage others."""
    def each(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=stages, max_size=stages))

    return Costs(**{kind: each(SECONDS) for kind in 'FBIWRU'}, latency=draw(SECONDS),
                 bandwidth=draw(st.sampled_from([float('inf'), 1.0, 100.0])),
                 message=each(st.integers(0, 50)), share=each(st.integers(0, 50)), stash=each(st.integers(100, 200)),
                 input=each(st.integers(1, 50)), for_W=each(st.integers(1, 50)),
                 weights=each(st.integers(0, 1000)))


def spans(timeline: Timeline) -> dict[Op, Span]:
    return {span.op: span for row in timeline.rows for span in row}


def arrivals(schedule: Schedule, timeline: Timeline, costs: Costs) -> dict[tuple[int, Op], float]:
    """When what an operation on a device needs from other devices is there: a queue between any two."""
    arrive, free = defaultdict(float), defaultdict(float)

    def send(device: int, other: int, op: Op, size: float, end: float) -> None:
        if device != other:
            end = free[device, other] = max(free[device, other], end) + size / costs.bandwidth
            end += costs.latency
        arrive[other, op] = max(arrive[other, op], end)

    for device, row in enumerate(timeline.rows):
        before = 0.0
        for op, _, end, *_ in row:
            user = used_by(schedule, op)
            if user is not None:
                send(device, schedule.device_at(*user[1:3]), user, costs.message[min(op.stage, user.stage)], end)
            for other in schedule.replicas_beside(op.stage, device) if op.kind == 'U' else ():
                send(device, other, op, costs.share[op.stage], before)   # as soon as it comes to the update
            before = end
    return arrive


# Time


@given(BARE, costs())
def test_an_operation_runs_as_soon_as_its_device_and_its_message_are_there(schedule, costs) -> None:
    timeline = simulate(schedule, costs)
    there = arrivals(schedule, timeline, costs)
    assert [[span.op for span in row] for row in timeline.rows] == [list(r) for r in schedule.rows]
    for device, row in enumerate(timeline.rows):
        now = 0.0
        for op, start, end, *_ in row:
            assert start == max(now, there.get((device, op), 0.0)), grid(schedule)
            assert end - start == pytest.approx(costs.of(op.kind, op.stage), abs=1e-9)
            now = end


@given(BARE, costs())
def test_everything_takes_its_time_follows_what_it_needs_and_runs_alone(schedule, costs) -> None:
    timeline = simulate(schedule, costs)
    when = spans(timeline)
    for op, span in when.items():
        assert span.seconds == pytest.approx(costs.of(op.kind, op.stage), abs=1e-9)
        for need in needs(schedule, op):
            apart = schedule.device_at(*need[1:3]) != schedule.device_at(*op[1:3])
            assert span.start >= when[need].end + costs.latency * apart, grid(schedule)
    for row in timeline.rows:
        assert all(before.end <= after.start for before, after in zip(row, row[1:]))


@given(BARE, costs())
def test_the_makespan_is_between_the_longest_path_and_everything_in_a_row(schedule, costs) -> None:
    """The path of a micro-batch: through all stages and back, with all messages."""
    makespan = simulate(schedule, costs).makespan
    total, hops = defaultdict(float), defaultdict(float)   # of a micro-batch
    for op in schedule:
        total[op.micro_batch] += costs.of(op.kind, op.stage) * (op.kind not in 'RWU')
    for i, s in itertools.product(range(schedule.micro_batches), range(schedule.stages - 1)):
        if schedule.device_at(s, i) != schedule.device_at(s + 1, i):   # forward once, backward once
            hops[i] += 2 * (costs.latency + costs.message[s] / costs.bandwidth)
    path = max(total[i] + hops[i] for i in range(schedule.micro_batches))
    alone = sum(costs.of(op.kind, op.stage) for op in schedule)
    assert makespan >= path * (1 - 1e-9)
    assert makespan >= max(sum(costs.of(op.kind, op.stage) for op in row)
                           for row in schedule.rows) * (1 - 1e-9)
    shared = sum(costs.latency + costs.share[op.stage] / costs.bandwidth for device, row in enumerate(schedule.rows)
                 for op in row if op.kind == 'U' for _ in schedule.replicas_beside(op.stage, device))
    assert makespan <= (alone + shared + sum(hops.values())) * (1 + 1e-9)


@given(BARE, costs(), st.booleans())
def test_send_and_recv_are_shown_and_change_nothing(schedule, costs, targets: bool) -> None:
    bare = simulate(schedule, costs)
    whole = simulate(with_messages(schedule, targets=targets), costs)
    shown = spans(whole)
    assert spans(bare) == {op: span for op, span in shown.items() if op.message is None}
    for row in whole.rows:
        for span, after in zip(row, row[1:]):
            assert span.end == after.start, 'a device waits in a receive, and nowhere else'
            assert span.op.kind != 'send' or span.seconds == 0
    assert [whole.busy(d) for d in range(len(whole.rows))] == [
        bare.busy(d) for d in range(len(bare.rows))]


@given(BARE, costs(), st.sampled_from('FBIWRU'), st.floats(0.0, 10.0))
def test_nothing_ends_earlier_if_something_takes_longer(schedule, costs, kind, more) -> None:
    slower = replace(costs, **{kind: [value + more for value in getattr(costs, kind)]})
    assert simulate(schedule, slower).makespan >= simulate(schedule, costs).makespan * (1 - 1e-9)


@given(BARE, costs())
def test_what_is_measured_in_a_timeline_gives_that_timeline_again(schedule, costs) -> None:
    costs = replace(costs, latency=0.0, bandwidth=float('inf'))
    timeline = simulate(schedule, costs)
    again = simulate(schedule, Costs.measured(timeline))
    for row, other in zip(timeline.rows, again.rows):
        assert [s.start for s in row] == pytest.approx([s.start for s in other], abs=1e-6)
        assert [s.end for s in row] == pytest.approx([s.end for s in other], abs=1e-6)


def test_a_measured_cost_is_a_median_and_one_that_is_missing_is_asked_for() -> None:
    row = [Span(Op('F', 0, i), i * 10.0, i * 10.0 + took) for i, took in enumerate((1, 5, 2))]
    measured = Costs.measured(Timeline((tuple(row),), ('device 0',)))
    assert (measured.of('F', 0), measured.of('R', 0)) == (2, 2)
    with pytest.raises(ValueError, match='no cost is known of B on stage 0'):
        simulate(gpipe(1, 1), measured)
    with pytest.raises(ValueError, match='no cost is known of F on stage 1'):
        simulate(gpipe(2, 1), Costs(F=[1.0]))


@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 9), st.integers(1, 9))
def test_a_recompute_costs_a_forward_unless_it_is_told_otherwise(n, m, f, b) -> None:
    """Backward then takes f + b: (m + n - 1) (2 f + b) for GPipe if all is recomputed."""
    schedule = with_recompute(gpipe(n, m), 'always')
    costs = Costs(F=f, B=b)
    assert simulate(schedule, costs) == simulate(schedule, replace(costs, R=f))
    assert simulate(schedule, costs).makespan <= (m + n - 1) * (2 * f + b)
    alone = with_recompute(gpipe(1, m), 'always')
    assert simulate(alone, replace(costs, R=f + 7)).makespan == m * (f + f + 7 + b)


def test_devices_that_wait_for_each_other_are_refused() -> None:
    rows = ((Op('B', 0, 0), Op('F', 0, 0)), (Op('F', 1, 0), Op('B', 1, 0)))
    with pytest.raises(ScheduleError, match='stage 0 waits for B0 from stage 1, which waits for'):
        simulate(Schedule('crossed', 2, 1, rows))


# Memory


@given(dressed(schedules(most=4)), costs())
def test_memory_begins_and_ends_with_one_weight_version_a_stage(schedule, costs) -> None:
    for device, row in enumerate(simulate(schedule, costs).rows):
        weights = sum(costs.weights[s] for s, d in schedule.devices_of.items() if device in d)
        assert row[0].live >= weights and all(span.live >= weights for span in row)
        assert row[-1].live == weights or schedule.weights == 'double_buffered'


@given(schedules(most=4))
def test_a_stash_lives_from_the_forward_to_the_backward(schedule: Schedule) -> None:
    timeline = simulate(schedule, Costs(stash=1))
    peaks = stashes(schedule)
    for device, row in enumerate(timeline.rows):
        stage_of = {op.stage for op in schedule.rows[device]}
        assert timeline.peak(device) <= sum(peaks[s] for s in stage_of)
        if len(stage_of) == 1:
            assert timeline.peak(device) == peaks[device]


@given(*SIZES, st.integers(1, 50), st.integers(50, 100), st.integers(0, 100))
def test_recompute_keeps_inputs_and_one_graph(n, m, small, large, weights) -> None:
    """GPipe: W + m inputs and a graph (arXiv 1811.06965, section 2.3), 1F1B: n - s for m."""
    costs = Costs(input=small, stash=large, weights=weights)
    for schedule, kept in ((gpipe(n, m), [m] * n),
                           (one_f_one_b(n, m), [min(m, n - s) for s in range(n)])):
        timeline = simulate(with_recompute(schedule, 'always'), costs)
        assert [timeline.peak(s) for s in range(n)] == [
            weights + (k - 1) * small + large for k in kept]


@given(st.integers(2, 8), st.integers(0, 8), st.integers(1, 9), st.integers(10, 20))
def test_zero_bubble_keeps_what_was_published(n, more, for_w, stash) -> None:
    """arXiv 2401.10241, table 2, with micro-batches enough; there stages count from 1."""
    for variant, (a, b) in {'H1': (1, 1), 'H2': (2, 2)}.items():
        timeline = simulate(zero_bubble(n, 3 * n + more, variant=variant),
                            Costs(stash=stash, for_W=for_w))
        assert [timeline.peak(i - 1) for i in range(1, n + 1)] == [
            (a * (n - i) + 1) * stash + b * (i - 1) * for_w for i in range(1, n + 1)]


@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 100))
def test_weight_versions_take_room(n: int, more: int, weights: int) -> None:
    """PipeDream's n - s, 2BW's two: those that are still needed, and the newest."""
    asynchronous = simulate(pipedream(n, 2 * n + more), Costs(weights=weights))
    buffered = simulate(two_bw(n, 3 * (n + more), update_every=n + more), Costs(weights=weights))
    for s in range(n):
        assert asynchronous.peak(s) == (n - s) * weights
        assert buffered.peak(s) == 2 * weights
        assert [span.version for span in asynchronous.rows[s] if span.op.kind == 'U'] == list(
            range(1, 2 * n + more + 1))


# Closed forms


@pytest.mark.parametrize('n, m, makespan, twice', [
    (2, 4, 15, 13.5), (4, 4, 21, 16.5), (4, 8, 33, 28.5), (8, 24, 93, 82.5), (8, 64, 213, 202.5)])
def test_the_vectors_of_megatron(n: int, m: int, makespan: float, twice: float) -> None:
    assert simulate(gpipe(n, m)).makespan == simulate(one_f_one_b(n, m)).makespan == makespan
    assert simulate(interleaved(n, m), Costs(F=0.5, B=1.0)).makespan == twice


@given(*SIZES, st.integers(1, 100), st.integers(1, 100))
def test_gpipe_and_1f1b_take_m_plus_n_minus_1_rounds(n, m, f, b) -> None:
    """arXiv 2104.04473, section 2.2; arXiv 1811.06965, section 2.3."""
    for schedule in (gpipe(n, m), one_f_one_b(n, m)):
        timeline = simulate(schedule, Costs(F=f, B=b))
        assert timeline.makespan == (m + n - 1) * (f + b)
        assert timeline.bubble == pytest.approx((n - 1) / (m + n - 1))
        assert m * n * (f + b) / timeline.makespan == pytest.approx(allowed_speed_up(m, n))


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 50),
       st.integers(1, 50))
def test_interleaving_divides_the_bubble(n, groups, v, f, b) -> None:
    """arXiv 2104.04473, section 2.2.2; f and b are those of one of the v stages of a device."""
    timeline = simulate(interleaved(n, n * groups, v=v), Costs(F=f, B=b))
    assert timeline.makespan == n * groups * v * (f + b) + (n - 1) * (f + b)


@given(st.integers(1, 8), st.integers(0, 10), st.integers(1, 50), st.integers(0, 50),
       st.integers(0, 50))
def test_zero_bubble_idles_as_published(n, more, w, f_more, i_more) -> None:
    """arXiv 2401.10241, table 2, where W is the shortest and micro-batches are enough."""
    f, i, m = w + f_more, w + i_more, 3 * n + more
    for variant, late in (('H1', 1), ('H2', 2)):
        rows = simulate(zero_bubble(n, m, variant=variant), Costs(F=f, I=i, W=w)).rows
        longest = max(row[-1].end - row[0].start for row in rows)
        assert longest == m * (f + i + w) + max((n - 1) * (f + i - late * w), 0)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 100), st.integers(1, 100))
def test_without_a_flush_the_bubble_is_paid_once(n, rounds, f, b) -> None:
    """arXiv 1806.03377, section 3.2, against flushing every n micro-batches."""
    costs = Costs(F=f, B=b)
    total = rounds * n
    assert simulate(pipedream(n, total), costs).makespan == (total + n - 1) * (f + b)
    assert simulate(two_bw(n, total), costs).makespan == (total + n - 1) * (f + b)
    assert rounds * simulate(one_f_one_b(n, n), costs).makespan == rounds * (2 * n - 1) * (f + b)


# milliseconds of F, I, W and a message; bubble rates of 1F1B, interleaved, ZB-H1 and ZB-H2
PUBLISHED = [(24, 18.522, 18.086, 9.337, 0.601, .2431, .1055, .1585, .1083),
             (32, 18.513, 18.086, 9.331, 0.626, .1985, .0818, .1242, .0837),
             (64, 18.546, 18.097, 9.321, 0.762, .1240, .0443, .0674, .0444)]


@pytest.mark.parametrize('m, f, i, w, latency, plain, chunks, h1, h2', PUBLISHED)
def test_the_bubble_rates_of_the_zero_bubble_paper(m, f, i, w, latency, plain, chunks, h1,
                                                   h2) -> None:
    """arXiv 2401.10241, tables 9 and 5: the 1.5B model, 8 stages of 3 layers."""
    costs = Costs(F=f, B=i + w, I=i, W=w, latency=latency)
    assert round(bubble_rate(simulate(one_f_one_b(8, m), costs)), 4) == plain
    assert round(bubble_rate(simulate(zero_bubble(8, m, variant='H1'), costs)), 4) == h1
    assert round(bubble_rate(simulate(zero_bubble(8, m, variant='H2'), costs)), 4) == h2
    layer = Costs(F=f / 3, B=(i + w) / 3, latency=latency)
    assert bubble_rate(simulate(interleaved(8, m, v=3), layer)) == pytest.approx(chunks, abs=0.004)


# Size


def test_the_simulator_needs_no_torch() -> None:
    code = ('import sys; from fewgpu.schedule import SCHEDULES, checks; '
            'from fewgpu.simulate import simulate\n'
            'for make in SCHEDULES.values(): checks.check(make(2, 4)); simulate(make(2, 4))\n'
            'sys.exit("torch" in sys.modules)')
    assert subprocess.run([sys.executable, '-c', code], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='needs the /proc of Linux')
def test_a_large_pipeline_fits_in_two_gigabytes() -> None:
    # (getrusage would tell the peak of the process that forked this one.)
    code = ('from pathlib import Path; from fewgpu.schedule import one_f_one_b; '
            'from fewgpu.simulate import simulate\n'
            'print(simulate(one_f_one_b(256, 4096)).makespan, '
            'Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    makespan, kilobytes = done.stdout.split()
    assert float(makespan) == 3 * (4096 + 255)
    assert int(kilobytes) < 2 * 2**20


def test_the_names_of_devices_and_all_schedules_simulate() -> None:
    for make in SCHEDULES.values():
        timeline = simulate(with_updates(make(3, 6)))
        assert timeline.names == ('device 0', 'device 1', 'device 2')
        assert all(span.version is not None for row in timeline.rows for span in row)


@pytest.mark.parametrize('wrong', [{'F': -1.0}, {'B': [1.0, -2.0]}, {'W': 'long'}, {'bandwidth': 0.0},
                                   {'latency': float('nan')}])
def test_costs_that_cannot_be_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match='a number of at least 0|above 0 bytes/s'):
        Costs(**wrong)
