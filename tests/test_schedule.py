"""Laws of schedules, on rows of operations alone: nothing is computed, and torch is not needed."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from fewgpu.schedule import (ACTIVATION, CHECKPOINTS, GRADIENT, Op, Schedule, activation, gpipe, gradient,
                             with_messages, with_recompute)

SCHEDULES = st.builds(with_recompute, st.builds(gpipe, st.integers(1, 6), st.integers(1, 8)),
                      st.sampled_from(CHECKPOINTS))


def recomputed(checkpoint: str, micro_batches: int) -> set[int]:
    """Which micro-batches the mode names: all, all but the last, none."""
    last = micro_batches - 1
    return {i for i in range(micro_batches)
            if checkpoint == 'always' or checkpoint == 'except_last' and i != last}


def play(schedule: Schedule) -> list[Op]:
    """One order in which the devices may carry the schedule out, the caller at its ends."""
    rows = [list(row) for row in schedule.rows]
    there = {op.message for row in rows for op in row if op.kind == 'recv'
             and not 0 <= op.message.source < schedule.stages}
    order: list[Op] = []
    while any(rows):
        before = len(order)
        for row in rows:
            while row and (row[0].kind != 'recv' or row[0].message in there):
                op = row.pop(0)
                order.append(op)
                if op.kind == 'send':
                    there.add(op.message)
        assert len(order) > before, f'nobody can go on: {[row[:1] for row in rows]}'
    return order


@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from(CHECKPOINTS))
def test_each_stage_runs_each_micro_batch_once_and_recomputes_where_asked(
        stages: int, micro_batches: int, checkpoint: str) -> None:
    schedule = with_recompute(gpipe(stages, micro_batches), checkpoint)
    assert (schedule.stages, schedule.micro_batches) == (stages, micro_batches)
    every = [(stage, i) for stage in range(stages) for i in range(micro_batches)]
    again = recomputed(checkpoint, micro_batches)
    assert Counter(schedule) == Counter(
        [Op(kind, stage, i) for kind in 'FB' for stage, i in every]
        + [Op('R', stage, i) for stage, i in every if i in again])


@given(SCHEDULES)
def test_stage_s_lives_on_device_s(schedule: Schedule) -> None:
    assert schedule.device_of == {stage: stage for stage in range(schedule.stages)}
    assert len(schedule.rows) == schedule.stages


@given(SCHEDULES)
def test_forwards_run_in_order_and_backwards_in_the_opposite_order_after_them(
        schedule: Schedule) -> None:
    for row in schedule.rows:
        passes = [(op.kind, op.micro_batch) for op in row if op.kind != 'R']
        count = range(schedule.micro_batches)
        assert passes == [('F', i) for i in count] + [('B', i) for i in reversed(count)]


@given(SCHEDULES)
def test_a_recompute_comes_just_before_its_backward(schedule: Schedule) -> None:
    for row in schedule.rows:
        assert all(after == Op('B', op.stage, op.micro_batch)
                   for op, after in zip(row, row[1:]) if op.kind == 'R')
        assert row[-1].kind == 'B'


@given(SCHEDULES)
def test_nobody_waits_for_ever_and_work_follows_what_it_needs(schedule: Schedule) -> None:
    """A forward follows that of the stage before, a backward that of the stage behind."""
    when = {op: position for position, op in enumerate(play(with_messages(schedule)))}
    for stage in range(schedule.stages):
        for i in range(schedule.micro_batches):
            assert when[Op('F', stage, i)] < when[Op('B', stage, i)]
            if stage > 0:
                assert when[Op('F', stage - 1, i)] < when[Op('F', stage, i)]
                assert when[Op('B', stage, i)] < when[Op('B', stage - 1, i)]


@given(SCHEDULES)
def test_both_halves_can_be_carried_out_one_after_the_other(schedule: Schedule) -> None:
    forward, rest = schedule.halves()
    assert {op.kind for op in forward} == {'F'} and 'F' not in {op.kind for op in rest}
    assert [a + b for a, b in zip(forward.rows, rest.rows)] == list(schedule.rows)
    for half in (forward, rest):
        assert len(play(with_messages(half))) == 3 * sum(op.kind in 'FB' for op in half) + sum(
            op.kind == 'R' for op in half)


@given(SCHEDULES)
def test_every_message_has_one_sender_and_one_receiver(schedule: Schedule) -> None:
    """The caller is one of them at the ends of the pipeline."""
    ops = list(with_messages(schedule))
    sent = Counter(op.message for op in ops if op.kind == 'send')
    received = Counter(op.message for op in ops if op.kind == 'recv')
    last, count = schedule.stages, range(schedule.micro_batches)
    fed = {activation(0, i) for i in count} | {gradient(last - 1, i) for i in count}
    taken = {activation(last, i) for i in count} | {gradient(-1, i) for i in count}
    assert max(sent.values()) == max(received.values()) == 1
    assert received.keys() - sent.keys() == fed
    assert sent.keys() - received.keys() == taken
    for op in ops:
        if op.kind == 'send':
            assert op.message.source == op.stage
        if op.kind == 'recv':
            assert op.message.stage == op.stage


@given(SCHEDULES)
def test_messages_stand_round_the_passes_and_change_nothing_else(schedule: Schedule) -> None:
    whole = with_messages(schedule)
    assert whole.select(lambda op: op.message is None) == schedule
    for row in whole.rows:
        for before, op, after in zip((None, *row), row, (*row[1:], None)):
            if op.kind in 'FB':
                what = ACTIVATION if op.kind == 'F' else GRADIENT
                assert (before.kind, before.message.what) == ('recv', what)
                assert (after.kind, after.message.what) == ('send', what)
                assert before.micro_batch == op.micro_batch == after.micro_batch


@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from(CHECKPOINTS))
def test_a_forward_keeps_what_its_backward_will_use(stages: int, micro_batches: int,
                                                    checkpoint: str) -> None:
    schedule = with_recompute(gpipe(stages, micro_batches), checkpoint)
    again = recomputed(checkpoint, micro_batches)
    for stage in range(stages):
        for i in range(micro_batches):
            assert schedule.keeps(stage, i) == ('input' if i in again else 'graph')
            assert with_messages(schedule).keeps(stage, i) == schedule.keeps(stage, i)
            assert schedule.halves()[0].keeps(stage, i) == 'nothing'


@given(SCHEDULES)
def test_the_last_micro_batch_is_recomputed_only_if_all_are(schedule: Schedule) -> None:
    again = {(op.stage, op.micro_batch) for op in schedule if op.kind == 'R'}
    assert len(again) in (0, schedule.stages * (schedule.micro_batches - 1),
                          schedule.stages * schedule.micro_batches)


@given(SCHEDULES)
def test_print_shows_every_operation_in_its_place(schedule: Schedule) -> None:
    for shown in (schedule, with_messages(schedule)):
        lines = str(shown).splitlines()
        assert len(lines) == len(shown.rows)
        for device, (line, row) in enumerate(zip(lines, shown.rows)):
            head, cells = line.split(' | ')
            assert head == f'device {device}' and line == line.rstrip()
            assert cells.split() == [str(op) for op in row]
            width = max(len(str(op)) for op in shown)
            starts = [cells.index(f'{op} ' if k < len(row) - 1 else str(op), k * (width + 1))
                      for k, op in enumerate(row)]
            assert starts == [k * (width + 1) for k in range(len(row))]


@given(SCHEDULES)
def test_an_operation_prints_as_nothing_else_in_its_row_does(schedule: Schedule) -> None:
    for row in with_messages(schedule).rows:
        assert len({str(op) for op in row}) == len(row)


@pytest.mark.parametrize(('stages', 'micro_batches', 'checkpoint'), [
    (0, 1, 'never'), (1, 0, 'never'), (-1, 2, 'always'), (2, 2, 'sometimes')])
def test_a_schedule_that_cannot_be_is_refused(stages: int, micro_batches: int,
                                              checkpoint: str) -> None:
    with pytest.raises(ValueError):
        with_recompute(gpipe(stages, micro_batches), checkpoint)


def test_schedules_need_no_torch() -> None:
    code = ('import sys, fewgpu.schedule as s; print(s.with_messages(s.gpipe(2, 3))); '
            'sys.exit("torch" in sys.modules)')
    assert subprocess.run([sys.executable, '-c', code], capture_output=True).returncode == 0
