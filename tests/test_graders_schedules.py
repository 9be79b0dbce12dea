"""What graders know of schedules and cuts, against the library's own truth and against trying all."""

import re

from hypothesis import given
from hypothesis import strategies as some
import pytest

from fewgpu.schedule import SCHEDULES, Op, Schedule, ScheduleError, check
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.graders.cuts import Counted, TooManySteps, all_cuts, least_slowest, stage_costs
from fewgpu.workshop.graders.schedules import as_far_as_it_comes, broken, makespan, picture

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
    assert [[span[:4] for span in row] for row in timeline.rows] == [[span[:4] for span in row] for row in simulated.rows]
    assert makespan(rows, sizes[1]) == simulated.makespan


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
    assert re.search('stage 0 waits for B0 from stage 1, which waits for F1 from stage 0', broken((2, 2), rows))
    assert 'stage 1 cannot run F1: it needs F1 of stage 0' in picture(rows)


@given(some.lists(some.one_of(some.integers(0, 20), some.floats(0, 20)), min_size=1, max_size=8), some.data())
def test_the_least_slowest_stage_is_that_of_the_best_of_all_cuts(costs, data):
    stages = data.draw(some.integers(1, len(costs)))
    assert least_slowest(costs, stages) == min(max(stage_costs(costs, cut)) for cut in all_cuts(len(costs), stages))


def test_counted_costs_count_and_stop():
    Counted.left = 10
    costs = [Counted(1.5), Counted(2), Counted(4)]
    assert sum(costs) == 7.5 and max(costs) == 4 and costs[1] - costs[0] == 0.5
    assert Counted.left == 10 - 3 - 2 - 1
    with pytest.raises(TooManySteps):
        sum(costs * 2)
