"""What graders know of schedules and cuts, against the library's own truth and against trying all."""

from random import Random

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from fewgpu.schedule import SCHEDULES, Op, Schedule, ScheduleError, check
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.graders.cuts import Counted, TooManySteps, all_cuts, least_slowest, stage_costs
from fewgpu.workshop.graders.schedules import judge_rows, misread, slow
from fewgpu.workshop.graders.wrong_cuts import climbed, dealt_out, halved, same_numbers, split_slowest
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.practice.plain import listed, number
from fewgpu.workshop.practice.rows import as_far_as_it_comes, broken, makespan, picture

SIZES = some.tuples(some.integers(1, 4), some.integers(1, 6))


def rows_of(schedule: Schedule) -> list[list[str]]:
    return [[str(op) for op in row] for row in schedule.rows]


@pytest.mark.parametrize('name', ['gpipe', '1f1b'])
@given(SIZES)
def test_times_are_the_simulators(name, sizes):
    schedule = SCHEDULES[name](*sizes)
    rows = rows_of(schedule)
    timeline, waits = as_far_as_it_comes(rows)
    simulated = simulate(schedule, Costs(F=1, B=2, stash=1))
    assert not waits and broken(sizes, rows) == ''
    ours, theirs = ([[span[:4] for span in row] for row in each.rows] for each in (timeline, simulated))
    assert ours == theirs
    assert makespan(rows) == simulated.makespan


@given(SIZES, some.randoms(use_true_random=False))
def test_a_schedule_is_broken_where_check_says_so(sizes, random):
    rows = rows_of(SCHEDULES[random.choice(['gpipe', '1f1b'])](*sizes))
    row = random.choice(rows)
    for _ in range(random.randrange(3)):
        one, other = random.randrange(len(row)), random.randrange(len(row))
        row[one], row[other] = (row[other], row[one]) if random.random() < 0.7 else (row[other], row[other])
    schedule = Schedule('mine', *sizes, tuple(tuple(Op(cell[0], stage, int(cell[1:])) for cell in row)
                                              for stage, row in enumerate(rows)))
    wrong = broken(sizes, rows)
    try:
        check(schedule)
    except ScheduleError as error:
        # paired sends are a law of ranks whose sends wait; a learner's step has to end on the kit's, which do not
        assert wrong or 'paired sends' in str(error)
    else:
        assert not wrong
    assert all(len(line) <= 78 for line in picture(rows).splitlines())


def test_a_stage_that_waits_for_ever_is_named():
    rows = [['F0', 'B0', 'F1', 'B1'], ['F0', 'F1', 'B0', 'B1']]
    for said in broken((2, 2), rows), picture(rows):
        assert 'stage 0 cannot run B0: it needs B0 of stage 1' in said
        assert 'stage 1 cannot run F1: it needs F1 of stage 0' in said


def test_a_failure_says_why_and_draws_the_rows():
    def forwards_only(stages, micro_batches):
        return [[f'F{i}' for i in range(micro_batches)] for _ in range(stages)]

    with pytest.raises(Failure) as failed:
        judge_rows('mine', forwards_only, Random(1), slow, suspects=misread(slow),
                   expected=lambda sizes: [['F0', 'B0']], lines=[])
    assert failed.value.message == 'Stage 0 never runs B0.' and failed.value.misconception == ''
    assert failed.value.case.startswith('mine(1, 1)\nyours     stage 0 | F0\nexpected  stage 0 | F0 B0')
    assert 'F0' in failed.value.picture and '<svg' in failed.value.svg


def test_a_single_row_is_told_once_and_not_drawn():
    def one_row(stages, micro_batches):
        return [f'F{i}' for i in range(micro_batches)]

    with pytest.raises(Failure) as failed:
        judge_rows('mine', one_row, Random(1), slow, suspects=misread(slow), expected=lambda sizes: [['F0', 'B0']],
                   lines=[])
    assert failed.value.misconception == 'one-row' and failed.value.message == failed.value.picture == ''


@pytest.mark.parametrize('one', [1.5, numpy.float64(1.5), numpy.array([1.5]), torch.tensor(1.5), torch.tensor([[1.5]])])
def test_numbers_are_plain_whatever_they_come_in(one):
    assert type(number(one)) is float and number(one) == 1.5


@pytest.mark.parametrize('many', [(1, 2), iter([1, 2]), torch.tensor([1, 2]), numpy.array([1, 2]),
                                  [torch.tensor(1), numpy.int64(2)], {1: '', 2: ''}.keys()])
def test_lists_are_plain_whatever_they_come_in(many):
    made = listed(many)
    assert made == [1, 2] and all(type(part) is int for part in made)


@pytest.mark.parametrize('other', [None, True, 'F0', [1], {'a': 1}])
def test_what_is_no_number_stays_as_it_is(other):
    assert number(other) is other


@given(some.lists(some.one_of(some.integers(0, 20), some.floats(0, 20)), min_size=1, max_size=8), some.data())
def test_the_least_slowest_stage_is_that_of_the_best_of_all_cuts(costs, data):
    stages = data.draw(some.integers(1, len(costs)))
    assert least_slowest(costs, stages) == min(max(stage_costs(costs, cut)) for cut in all_cuts(len(costs), stages))


COSTS = some.lists(some.integers(0, 20), min_size=1, max_size=9)


@given(COSTS, some.data())
def test_popular_cuts_are_cuts_and_moves_make_them_no_slower(costs, data):
    stages = data.draw(some.integers(1, len(costs)))
    for cut in (same_numbers, halved, split_slowest, climbed):
        assert cut(costs, stages) in list(all_cuts(len(costs), stages))
    assert sum(dealt_out(costs, stages)) == len(costs)
    slowest_climbed, slowest_same = (max(stage_costs(costs, cut(costs, stages))) for cut in (climbed, same_numbers))
    assert slowest_climbed <= slowest_same


def test_counted_costs_count_and_stop():
    Counted.left = 10
    costs = [Counted(1.5), Counted(2), Counted(4)]
    assert sum(costs) == 7.5 and max(costs) == 4 and costs[1] - costs[0] == 0.5
    assert Counted.left == 10 - 3 - 2 - 1
    with pytest.raises(TooManySteps):
        sum(costs * 2)
