"""Records of runs with a fault: what they say is what was asked for, and the fault is there once."""

from dataclasses import replace
from random import Random

import pytest

from fewgpu.workshop.practice.fault_cases import FAULTS, Case, case_of, cases, unevenness, work
from fewgpu.workshop.practice.faults import Layer, Machine, Setting, balances, picture, predict, run

MACHINE = Machine((Layer(2.0, 8, 40), Layer(4.0, 8, 40)), (1.0, 1.0), (0.5,), (100.0, 100.0))
SETTING = Setting((1, 1), 2, 'gpipe', 0.5)


def test_operations_and_messages_take_what_the_profile_says():
    record = run(SETTING, MACHINE)
    assert [(span.kind, span.micro_batch, span.start, span.end) for span in record.spans[0]][:2] == [
        ('F', 0, 0.0, 1.0), ('F', 1, 1.0, 2.0)]
    # A micro-batch's message has 4 bytes and takes 2 s: the second one waits until the first has left.
    assert record.messages[0][:2] == ((1.0, 3.0, 4.0), (3.0, 5.0, 4.0))
    assert [span.start for span in record.spans[1]][:2] == [3.0, 5.0]
    assert record.peak == (40.0, 40.0) and record.error == ''


def test_norms_are_the_plain_ones_times_what_the_scale_is_wrong_by():
    record = run(replace(SETTING, loss_scale=1.0), MACHINE)
    assert record.norms == tuple(2 * norm for norm in record.plain_norms)
    right = run(SETTING, MACHINE)
    assert right.norms == right.plain_norms and right.losses[0] > right.losses[-1]


def test_without_memory_the_step_ends_where_the_first_stash_does_not_fit():
    record = run(replace(SETTING, chunks=4), replace(MACHINE, memory=(100.0, 15.0)))
    assert 'out of memory' in record.error and record.peak[1] == 20.0
    assert len(record.spans[1]) == 1 and record.norms == ()


def test_rows_that_wait_for_each_other_run_as_far_as_they_come():
    rows = (('F0', 'B0', 'F1', 'B1'), ('F0', 'F1', 'B0', 'B1'))
    record = run(replace(SETTING, schedule=rows), MACHINE)
    assert [len(spans) for spans in record.spans] == [1, 1] and 'TimeoutError' in record.error


@pytest.mark.parametrize('change', [{'balance': (1, 2)}, {'balance': (2, 0)}, {'chunks': 0}, {'chunks': 1.5},
                                    {'schedule': 'zb'}, {'schedule': (('F0',), ('F0',))}, {'loss_scale': None}])
def test_settings_that_cannot_be_are_refused(change: dict) -> None:
    with pytest.raises(ValueError):
        run(replace(SETTING, **change), MACHINE)


def all_cases() -> list[Case]:
    return [case for seed in range(3) for case in cases(Random(seed), 4)]


def test_a_case_has_its_fault_and_no_other():
    for case in all_cases():
        record, slow, paces = case.record, case.machine.slowness, case.machine.seconds_a_byte
        assert (max(slow) >= 1.5 * min(slow)) == (case.fault == 'straggler')
        assert (max(paces) >= 1.5 * min(paces)) == (case.fault == 'slow link')
        uneven = unevenness(case.setting.balance, case.machine)
        assert uneven >= 1.5 if case.fault == 'imbalance' else uneven <= 1.25
        assert ('memory' in record.error) == (case.fault == 'out of memory')
        assert ('Timeout' in record.error) == (case.fault == 'deadlock')
        if record.norms:
            assert (record.norms[0] == pytest.approx(record.plain_norms[0])) == (case.fault != 'loss scale')
        assert all(record.spans) and all(record.messages)
        assert (case.where is None) == (case.fault in ('healthy', 'loss scale'))
        if case.fault == 'imbalance':
            assert max(each := work(case.setting.balance, case.machine)) == each[case.where]


def test_prediction_from_the_true_numbers_is_the_run():
    for case in all_cases():
        assert predict(case.record, case.setting, case.machine.slowness, case.machine.seconds_a_byte) == case.record


def test_the_same_random_gives_the_same_case():
    for fault in FAULTS:
        assert case_of(fault, Random(5)) == case_of(fault, Random(5))


def test_balances_are_all_that_there_are():
    assert sorted(balances(5, 2)) == [(1, 4), (2, 3), (3, 2), (4, 1)]
    assert len({*balances(9, 4)}) == 56


def test_pictures_fit_a_screen():
    for case in all_cases():
        assert all(len(line) <= 78 for line in picture(case.record).splitlines())
