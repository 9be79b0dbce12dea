"""Laws of the critical path, and of what a step would have taken otherwise, against the simulator."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu.causes import Causes
from fewgpu.critical_path import critical_path, length
from fewgpu.replay import Change, Replay
from fewgpu.schedule import with_messages, with_updates
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import WAITS, Span, Timeline
from fewgpu.trace_advice import advise
from fewgpu.trace_figures import figures
from fewgpu.trace_files import TraceError
from fewgpu.trace_merge import Merged
from fewgpu.schedule.named import schedule_maker
from tests.traces import FLUSHING, costs, schedules, simulated

NEAR = dict(rel=1e-9, abs=1e-9)


@given(schedules(), st.data())
def test_in_virtual_time_it_is_as_long_as_the_step_and_has_no_gap(plan, data):
    price = data.draw(costs(plan.stages, bandwidth=data.draw(st.sampled_from((1.0, 7.0, float('inf')))),
                            message=data.draw(st.floats(0, 2)), share=0.5))
    timeline = simulate(plan, price)
    path = critical_path(Causes(Merged.of(timeline)))

    assert length(path) == pytest.approx(timeline.makespan, **NEAR)
    assert path[0].start == 0.0 and path[-1].end == timeline.makespan
    assert all(one.end == following.start for one, following in zip(path, path[1:]))


@given(schedules(), st.data())
def test_its_operations_are_as_long_as_what_they_cost_and_its_messages_as_their_latency(plan, data):
    price = data.draw(costs(plan.stages))
    for link in critical_path(Causes(simulated(plan, price))):
        if link.kind == 'op':
            assert link.seconds == pytest.approx(price.of(link.op.kind, link.op.stage), **NEAR)
        else:
            assert link.kind == 'message' and link.sender != link.row
            assert link.seconds == pytest.approx(price.latency, **NEAR)


@given(schedules(), st.data())
def test_every_link_is_tight_what_lengthens_one_operation_lengthens_the_step(plan, data):
    causes = Causes(simulated(plan, data.draw(costs(plan.stages))))
    replay, more = Replay(causes), data.draw(st.floats(0.01, 5))
    on_path = data.draw(st.sampled_from([link for link in critical_path(causes) if link.kind == 'op']))
    number = next(number for number, span in enumerate(causes.spans)
                  if (causes.rows[number], span.op, span.start) == (on_path.row, on_path.op, on_path.start))
    seconds = [*replay.seconds]
    seconds[number] += more

    assert replay.makespan(Change(seconds)) == pytest.approx(replay.makespan() + more, **NEAR)


@given(schedules(), st.data())
def test_what_is_lost_between_operations_is_told_from_what_they_take(plan, data):
    merged = simulated(plan, data.draw(costs(plan.stages)))
    rows, before = [], data.draw(st.floats(0.01, 2))   # so much later than it could the step begins
    for row in merged.timeline.rows:
        rows.append(tuple(Span(op, start + before, end + before, *more) for op, start, end, *more in row))
    moved = [{place: time + before for place, time in had.items()} for had in merged.arrivals]
    path = critical_path(Causes(replace(merged, timeline=Timeline(tuple(rows), merged.timeline.names),
                                        arrivals=tuple(moved))))

    lost = sum(link.seconds for link in path if link.kind == 'lost')
    assert lost == pytest.approx(before, **NEAR)
    assert length(path) == pytest.approx(merged.timeline.makespan, **NEAR)


@given(schedules(), st.data())
def test_without_a_change_a_replay_is_the_trace(plan, data):
    causes = Causes(simulated(plan, data.draw(costs(plan.stages))))

    assert Replay(causes).ends() == pytest.approx([span.end for span in causes.spans], **NEAR)


@given(schedules(), st.data())
def test_replays_with_other_durations_are_the_simulators(plan, data):
    before, after = data.draw(costs(plan.stages)), data.draw(costs(plan.stages))
    after = replace(after, latency=before.latency)
    replay = Replay(Causes(simulated(plan, before)))
    seconds = [0.0 if span.op.kind in WAITS else after.of(span.op.kind, span.op.stage) for span in replay.causes.spans]

    assert replay.makespan(Change(seconds)) == pytest.approx(simulate(plan, after).makespan, **NEAR)
    assert replay.makespan(Change(flight=0.0)) == pytest.approx(
        simulate(plan, replace(before, latency=0.0)).makespan, **NEAR)


def mean_of(price, kind, stages):
    return sum(price.of(kind, stage) for stage in stages) / max(len(stages), 1)


@given(schedules(names=FLUSHING), st.data())
def test_equal_stages_gain_what_the_simulator_says(plan, data):
    price = replace(data.draw(costs(plan.stages)), U=0.0)
    advice = {one.change: one for one in advise(Causes(simulated(plan, price)))}
    used = {(op.kind, op.stage) for op in plan if op.message is None}
    mean = {kind: mean_of(price, kind, [stage for stage in range(plan.stages) if (kind, stage) in used])
            for kind in 'FBIWR'}
    gain = simulate(plan, price).makespan / simulate(plan, Costs(**mean, latency=price.latency)).makespan

    assert ('equal stages' in advice) == (gain >= 1.005)
    if gain >= 1.005:
        assert advice['equal stages'].factor == pytest.approx(gain)


@given(st.sampled_from(('gpipe', '1f1b')), st.integers(2, 5), st.integers(1, 9), st.floats(0.1, 3))
def test_twice_the_micro_batches_gain_what_the_textbook_says(name, stages, chunks, forward):
    plan = with_messages(with_updates(schedule_maker(name, stages)(chunks)))
    advice = advise(Causes(simulated(plan, Costs(F=forward, B=2 * forward))))

    assert [one.change for one in advice] == [f'{2 * chunks} micro-batches instead of {chunks}']
    assert advice[0].factor == pytest.approx((chunks + stages - 1) / (chunks + (stages - 1) / 2))


@settings(max_examples=50)
@given(schedules(), st.data())
def test_the_best_advice_comes_first_and_none_is_a_loss(plan, data):
    advice = advise(Causes(simulated(plan, data.draw(costs(plan.stages)))))

    assert all(one.factor >= following.factor for one, following in zip(advice, advice[1:]))
    assert all(one.factor > 1.0 and one.change and one.how for one in advice)


@given(schedules(names=FLUSHING), st.data())
def test_the_figures_of_a_step_are_those_of_its_timeline(plan, data):
    merged = simulated(plan, data.draw(costs(plan.stages)))
    one = figures(Causes(merged))

    assert one.bubble == pytest.approx(merged.timeline.bubble, **NEAR)
    assert one.busy == pytest.approx([merged.timeline.busy(row) for row in range(len(merged.timeline.rows))], **NEAR)
    assert one.imbalance >= 1.0 - 1e-9 and max(one.busy) == one.busy[one.busiest]
    assert min(*one.others, *one.flight, *one.handling) >= 0.0
    waits = sum(span.seconds for row in merged.timeline.rows for span in row if span.op.kind == 'recv')
    assert sum(one.others) + sum(one.flight) + sum(one.handling) == pytest.approx(waits, **NEAR)


def test_operations_that_wait_for_each_other_in_a_circle_are_refused():
    timeline = simulate(with_messages(schedule_maker('1f1b', 2)(2)))
    first, second = timeline.rows
    turned = Timeline((tuple(reversed(first)), second), timeline.names)

    with pytest.raises(TraceError, match='circle'):
        Causes(Merged.of(turned))
