"""What is wrong with a schedule is found, exactly then, and is explained with the cell marked."""

from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings, strategies as st

from fewgpu.schedule import (TARGET, Message, Op, Schedule, ScheduleError, activation, check, gpipe, grid,
                             one_f_one_b, with_messages)
from fewgpu.schedule.waits import SENDS, verify_no_deadlock
from tests.schedules import dressed, is_right, schedules

SMALL = dressed(schedules(most=3), messages=False)


def rows(*texts: str) -> tuple[tuple[Op, ...], ...]:
    """'F0 B0', 'F0 B0' -> the rows of two stages."""
    return tuple(tuple(Op(name[0], stage, int(name[1:])) for name in text.split())
                 for stage, text in enumerate(texts))


def hand_written(*texts: str) -> Schedule:
    made = rows(*texts)
    return Schedule('mine', len(texts), 1 + max(op.micro_batch for row in made for op in row), made)


def refusal(schedule: Schedule) -> str | None:
    """Why `check` refuses a schedule."""
    try:
        check(schedule)
    except ScheduleError as error:
        return str(error)
    return None


def pick(data, mutable: list[list[Op]]) -> tuple[int, int]:
    device = data.draw(st.sampled_from([d for d, row in enumerate(mutable) if row]))
    return device, data.draw(st.integers(0, len(mutable[device]) - 1))


def mutate(data, schedule: Schedule) -> Schedule:
    """Swap two operations of a device, or of two, drop one, repeat one, exchange two stages."""
    what = data.draw(st.sampled_from(['swap', 'cross', 'drop', 'repeat', 'rename']))
    mutable = [list(row) for row in schedule.rows]
    (a, i), (b, j) = pick(data, mutable), pick(data, mutable)
    if what == 'swap':
        j = data.draw(st.integers(0, len(mutable[a]) - 1))
        mutable[a][i], mutable[a][j] = mutable[a][j], mutable[a][i]
    elif what == 'cross':
        mutable[a][i], mutable[b][j] = mutable[b][j], mutable[a][i]
    elif what == 'drop':
        del mutable[a][i]
    elif what == 'repeat':
        mutable[b].insert(j, mutable[a][i])
    else:
        first, second = mutable[a][i], mutable[b][j]
        mutable[a][i] = first._replace(stage=second.stage)
        mutable[b][j] = second._replace(stage=first.stage)
    event(what)
    return replace(schedule, rows=tuple(map(tuple, mutable)))


@settings(max_examples=300)
@given(SMALL, st.data())
def test_a_mutation_is_refused_exactly_when_it_is_wrong(schedule: Schedule, data) -> None:
    mutant = mutate(data, schedule)
    right, why = is_right(mutant), refusal(mutant)
    event('right' if right else 'wrong')
    assert right == (why is None), f'{why or "not refused"}\n{grid(mutant)}'


@settings(max_examples=100)
@given(SMALL, st.data())
def test_messages_change_nothing_about_what_is_wrong(schedule: Schedule, data) -> None:
    mutant = mutate(data, schedule)
    assert (refusal(mutant) is None) == (refusal(with_messages(mutant)) is None), grid(mutant)


@given(dressed(schedules(most=3), messages=True), st.data())
def test_a_message_that_is_missing_late_or_twice_is_refused(schedule: Schedule, data) -> None:
    mutable = [list(row) for row in schedule.rows]
    device = data.draw(st.integers(0, len(mutable) - 1))
    row = mutable[device]
    at = data.draw(st.sampled_from([k for k, op in enumerate(row) if op.message]))
    message = row.pop(at)
    kind = data.draw(st.sampled_from(['missing', 'late', 'twice', 'wrong']))
    if kind == 'missing':   # without its only target it is right again: a schedule without targets
        assume(message.message.what != TARGET or schedule.micro_batches > 1)
    if kind == 'late':   # a send too early, a receive too late
        row.insert(at - 1 if message.kind == 'send' else at + 1 + (row[at].kind == 'recv'), message)
    elif kind == 'twice':
        row[at:at] = [message, message]
    elif kind == 'wrong':
        other = activation(schedule.stages + 1, 0)
        row.insert(at, message._replace(message=Message(other.what, message.stage, 99, 0)))
    mutant = replace(schedule, rows=tuple(map(tuple, mutable)))
    assert refusal(mutant), grid(mutant)


@given(SMALL, st.data())
def test_a_refusal_shows_the_grid(schedule: Schedule, data) -> None:
    why = refusal(mutate(data, schedule))
    assume(why)
    sentence, *lines = why.splitlines()
    assert sentence.startswith(schedule.name) and len(sentence) < 400
    assert len(lines) == len(schedule.rows) and all(line.startswith('device ') for line in lines)
    assert why.count('[') == why.count(']') <= 1


@pytest.mark.parametrize('texts, sentence, cell', [
    (('F0 B0 F1 B1', 'F0 F1 B1 B0'),
     'stage 0 waits for B0 from stage 1, which waits for F1 from stage 0', '[B0]'),
    (('F0 F1 F2 B0 B1 B2', 'F0 F1 B0 F2 B1'), 'stage 1 runs F2 of micro-batch 2', '[F2]'),
    (('F0 B0 F1 B1', 'F0 F1 B0 B1 B1'), 'stage 1 runs B1 twice', '[B1]'),
    (('B0 F0',), 'stage 0 runs B0 before F0: a backward needs its own forward', '[B0]'),
    (('F0 W0 I0',), 'stage 0 runs W0 before I0', '[W0]'),
    (('F0 I0',), 'stage 0 runs F0 and I0 of micro-batch 0: it needs F0 and B0, or F0, I0 and W0',
     '[I0]'),
    (('F0 R0 R0 B0',), 'stage 0 runs R0 twice', '[R0]'),
    (('F0 B0 R0',), 'stage 0 runs B0 before R0', '[B0]'),
    (('F1 B1 F0 B0', 'F0 F1 B0 B1'), 'stage 0 waits for B1 from stage 1, '
     'which waits for F0 from stage 0', '[B1]'),
    (('F0 X0 B0',), "there is no operation 'X'", '[X0]'),
])
def test_a_wrong_schedule_is_explained_and_its_cell_marked(texts, sentence, cell) -> None:
    why = refusal(hand_written(*texts))
    assert sentence in why and cell in why


@pytest.mark.parametrize('kinds, every, sentence', [
    ('F0 B0 U F1 B1', None, 'updates its weights before the backward of micro-batch 1'),
    ('F0 B0 F1 B1 U U', None, 'updates its weights once too often'),
    ('F0 B0 F1 B1 U', 1, 'updates its weights after the backward of micro-batch 1'),
    ('F0 B0 U F1 B1', 1, 'never updates its weights with the gradient of micro-batch 1'),
])
def test_an_update_out_of_place_is_explained(kinds: str, every: int | None, sentence: str) -> None:
    row = tuple(Op(name[0], 0, int(name[1:] or -1)) for name in kinds.split())
    why = refusal(Schedule('mine', 1, 2, (row,), weights='stashed', update_every=every))
    assert f'stage 0 {sentence}' in why
    assert ('[U]' in why) == (not sentence.startswith('never'))


def test_stages_on_two_devices_and_names_out_of_range_are_explained() -> None:
    first, second = one_f_one_b(2, 2).rows
    crossed = Schedule('mine', 2, 2, ((*first[:-1], second[-1]), (*second[:-1], first[-1])))
    assert 'stage 1 is on device 0 and on device 1' in refusal(crossed)
    assert 'there is no stage 1' in refusal(Schedule('mine', 1, 2, (first, second)))
    assert 'there is no micro-batch 1' in refusal(Schedule('mine', 2, 1, (first, second)))


def test_a_weight_version_that_no_update_has_made_yet_is_explained() -> None:
    row = [op for i in range(4) for op in (Op('F', 0, i), Op('B', 0, i), Op('U', 0, i))]
    schedule = Schedule('mine', 1, 4, (tuple(row),), weights='double_buffered', update_every=1)
    check(schedule)
    row.remove(Op('F', 0, 2))
    early = replace(schedule, rows=((Op('F', 0, 2), *row),))
    assert 'F2 takes weight version 1 of stage 0, which no update has made yet' in refusal(early)


@given(st.integers(2, 6), st.integers(2, 8))
def test_blocking_sends_stop_1f1b_and_not_gpipe(stages: int, micro_batches: int) -> None:
    """What neighbours send to each other at the same time nobody receives: such are paired."""
    verify_no_deadlock(gpipe(stages, micro_batches), sends='blocking')
    with pytest.raises(ScheduleError, match='to receive F1, which waits for stage . to receive B0'):
        verify_no_deadlock(one_f_one_b(stages, micro_batches), sends='blocking')


@given(dressed())
def test_what_ends_with_stricter_sends_ends_with_laxer_ones(schedule: Schedule) -> None:
    def ends(sends: str) -> bool:
        try:
            verify_no_deadlock(schedule, sends=sends)
        except ScheduleError:
            return False
        return True

    buffered, paired, blocking = map(ends, SENDS)
    assert buffered >= paired >= blocking


def test_messages_that_overtake_each_other_need_buffered_sends() -> None:
    schedule = hand_written('F0 F1 F2 B0 B1 B2', 'F2 F1 F0 B0 B1 B2')
    verify_no_deadlock(schedule)
    with pytest.raises(ScheduleError, match='deadlock with paired sends: stage 0 waits for stage 1 '
                                            'to receive F0, which waits for F2 from stage 0'):
        verify_no_deadlock(schedule, sends='paired')


def test_an_unknown_kind_of_sends_is_refused() -> None:
    with pytest.raises(ValueError, match='sends is one of buffered, paired, blocking'):
        verify_no_deadlock(gpipe(1, 1), sends='telepathic')


def test_of_a_large_schedule_the_surroundings_are_shown() -> None:
    schedule = one_f_one_b(40, 200)
    shown = grid(schedule, (20, 100)).splitlines()
    assert len(shown) < 20 and max(map(len, shown)) < 250
    assert sum(f'[{schedule.rows[20][100]}]' in line for line in shown) == 1
