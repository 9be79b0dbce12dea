"""What graders know of weight versions and of plans, against formulas, the simulator and a plain loop."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from fewgpu.schedule import one_f_one_b
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.graders import delayed, plan_costs, plan_search, stashes, versions
from fewgpu.workshop.graders.wrong_stashes import WRONG
from fewgpu.workshop.practice.cluster import Cluster, Model, Plan


@given(some.integers(1, 7), some.data())
def test_versions_on_schedules_are_those_of_the_papers(stages: int, data: some.DataObject) -> None:
    """PipeDream: n - 1 - s updates behind (arXiv 1806.03377); 2BW: one group (arXiv 2006.09503)."""
    stage, i = data.draw(some.integers(0, stages - 1)), data.draw(some.integers(0, 20))
    case = stages, stage, i, stages + data.draw(some.integers(0, 3))
    assert versions.stashed(case) == max(0, i - (stages - 1 - stage))
    assert versions.synchronous(case) == max(0, i - (stages - 1))
    assert versions.double_buffered(case) == max(0, i // case[3] - 1)


@pytest.mark.parametrize('seed', range(2))
def test_a_plain_stash_is_right_and_keeps_what_is_of_use(seed: int) -> None:
    class Plain:
        def __init__(self, weights: torch.Tensor) -> None:
            self.newest, self.used = weights, {}

        def forward(self, i: int) -> torch.Tensor:
            return self.used.setdefault(i, self.newest)

        def backward(self, i: int) -> torch.Tensor:
            return self.used.pop(i)

        def update(self, change: torch.Tensor) -> None:
            self.newest = self.newest + change

    with stashes.quick_collections():
        for play in stashes.plays(Random(seed)):
            assert stashes.versions(Plain, play) == (play.truth(), False)
            assert stashes.copies(Plain, play) == play.needed()


@pytest.mark.parametrize(('name', 'wrong'), WRONG, ids=[wrong.__name__ for _, wrong in WRONG])
def test_every_wrong_stash_is_wrong_somewhere(name: str, wrong: stashes.MakeStash) -> None:
    def is_right(play: stashes.Play) -> bool:
        try:
            return stashes.versions(wrong, play) == (play.truth(), False)
        except (KeyError, IndexError):
            return False

    assert not all(map(is_right, stashes.plays(Random(1))))


@pytest.mark.parametrize('stage', range(4))
def test_a_stage_of_pipedream_needs_as_many_versions_as_stages_are_left(stage: int) -> None:
    assert max(stashes.Play(stashes.pipedream_row(4, stage, 9)).needed()) == 4 - stage


@pytest.mark.parametrize('mistake', delayed.MISTAKES)
def test_every_mistake_of_training_shows(mistake: str) -> None:
    cases = delayed.trainings(Random(2))
    assert not all(torch.allclose(delayed.mistaken(case, mistake), case.history()[-1]) for case in cases)


def test_no_mistake_is_the_truth() -> None:
    for case in delayed.trainings(Random(3)):
        assert torch.allclose(delayed.mistaken(case, ''), case.history()[-1])


@given(some.integers(1, 6), some.integers(1, 9), some.integers(1, 3), some.booleans())
def test_seconds_of_a_plan_are_the_simulators(depth: int, micro_batches: int, per_stage: int, recompute: bool) -> None:
    """Nothing is sent, and every stage has as many blocks."""
    model = Model(blocks=depth * per_stage, forward=2.0, backward=5.0, start=1.0, weights=0.0, state=0.0,
                  activations=3.0, boundary=0.0)
    case = plan_costs.Case(model, Cluster(8, 1e9, 1.0), Plan(depth, 1, 2, recompute), 2 * micro_batches)
    again = per_stage * 5.0 if recompute else 0.0
    costs = Costs(F=per_stage * 5.0, B=per_stage * 11.0 + again, stash=2 * per_stage * 3)
    timeline = simulate(one_f_one_b(depth, micro_batches), costs)
    assert plan_costs.seconds(case) == pytest.approx(timeline.makespan)
    if not recompute:
        assert plan_costs.memory(case) == max(timeline.peak(stage) for stage in range(depth))


def test_best_plan_is_the_least_of_all_that_fit() -> None:
    for task in plan_search.tasks(Random(4))[:40]:
        best = plan_search.best(task)
        some_fit = [plan for plan in plan_search.legal(task) if task.memory(plan) <= task.cluster.memory]
        assert (best is None) == (not some_fit)
        assert all(task.seconds(best) <= task.seconds(plan) for plan in some_fit)
        assert plan_search.slower(task, best) == ''


def test_plans_that_cannot_be_are_told_why() -> None:
    task = plan_search.tasks(Random(5))[-1]
    devices, blocks, batch = task.cluster.devices, task.model.blocks, task.batch
    assert 'devices' in plan_search.impossible(task, Plan(2, devices, 1))
    assert 'stages' in plan_search.impossible(task, Plan(blocks + 1, 1, 1))
    assert 'divide' in plan_search.impossible(task, Plan(1, 1, batch + 1))
    assert 'no Plan' in plan_search.impossible(task, 'all of them')
