"""PipeMare: its delays, its three techniques, and the learning rate at which late gradients diverge."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu import Pipeline
from fewgpu.pipemare import DECAY, PipeMare, delays, rescheduled, stability_limit
from fewgpu.schedule import gpipe, pipedream, pipemare, two_bw, with_updates
from tests.networks import evenly, virtual

mse = nn.functional.mse_loss
sgd = partial(torch.optim.SGD, lr=0.1)


@given(evenly(1, 6), evenly(1, 5), evenly(2, 4))
def test_delays_are_those_of_the_paper_for_stages_that_alternate(n: int, every: int, rounds: int) -> None:
    micro_batches = every * (rounds + n)
    expected = [(n - 1 - s) / every for s in range(n)]
    assert delays(pipemare(n, micro_batches, update_every=every)) == pytest.approx(expected)
    assert delays(pipedream(n, micro_batches)) == [n - 1 - s for s in range(n)]
    assert delays(with_updates(gpipe(n, micro_batches))) == [0] * n
    assert delays(two_bw(n, 3 * (n + every), update_every=n + every)) == [1] * n


def test_updates_cover_whole_groups_of_micro_batches() -> None:
    for every in (0, 3):
        with pytest.raises(ValueError, match='no multiple'):
            pipemare(2, 4, update_every=every)


@given(st.floats(0.1, 30), st.integers(0, 200), st.integers(1, 100))
def test_the_rescheduled_rate_grows_from_one_over_the_delay_to_the_whole(delay: float, k: int, annealing: int
                                                                         ) -> None:
    rate = rescheduled(delay, k, annealing)
    assert rescheduled(delay, 0, annealing) == pytest.approx(1 / max(delay, 1))
    assert rate <= rescheduled(delay, k + 1, annealing) <= 1
    assert (rate == 1) == (k >= annealing or delay <= 1)
    assert rescheduled(delay, k, 0) == 1
    if 0 < k < annealing:
        p = math.log(1 / rate, delay) if delay > 1 else 1 - k / annealing
        assert p == pytest.approx(1 - k / annealing, abs=1e-6)


def test_every_stage_has_its_own_rate_only_while_gradients_are_late_and_anneal() -> None:
    """A model of one number a stage, and a loss whose gradient is 1 everywhere: steps are the rates."""
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.by

    model = nn.Sequential(Shift(), Shift(), Shift())
    steps: list[list[float]] = [[], [], []]
    pipeline = Pipeline(model, [1, 1, 1], schedule='pipemare', devices=virtual(3),
                        loss_fn=lambda out, y: (out - y).mean(),
                        optimizer=lambda own: PipeMare(sgd(own), annealing=4))
    for (_, s), optimizer in pipeline.optimizers.items():
        own, step = model[s].by, optimizer.optimizer.step
        def noted(own=own, step=step, s=s) -> None:
            before = own.item()
            step()
            steps[s].append((before - own.item()) / 0.1)
        optimizer.optimizer.step = noted
    batch = tuple(torch.randn(2, 4, 1, dtype=torch.float64))
    for _ in range(2):   # T3: synchronous, at the full rate
        pipeline.step(*batch)
    pipeline.train([batch] * 8)
    anneal = [2 ** -(1 - k / 4) for k in range(4)]
    assert steps[0] == pytest.approx([1, 1, 1, *anneal, 1, 1, 1])   # the first of a run is not late
    assert steps[1] == steps[2] == pytest.approx([1] * 10)          # their delays are 1 and 0
    assert [group['lr'] for group in pipeline.optimizers[0, 0].param_groups] == [0.1]


def test_state_goes_through_a_checkpoint() -> None:
    torch.manual_seed(0)
    batches = [tuple(torch.randn(2, 4, 3, dtype=torch.float64)) for _ in range(12)]

    def made() -> Pipeline:
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))).double()
        return Pipeline(model, [1, 1, 1], schedule='pipemare', devices=virtual(3), loss_fn=mse,
                        optimizer=lambda own: PipeMare(torch.optim.Adam(own, lr=0.1), annealing=9))

    whole, first, second = made(), made(), made()
    whole.train(batches[:6])
    whole.train(batches[6:])
    first.train(batches[:6])
    second.load_state_dict(first.state_dict())
    for s, optimizer in first.optimizers.items():
        second.optimizers[s].load_state_dict(optimizer.state_dict())
    second.train(batches[6:])
    for one, other in zip(whole.parameters(), second.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize('options', [{'annealing': -1}, {'decay': 0.0}, {'decay': 1.5}])
def test_figures_that_mean_nothing_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match='annealing is a number of updates'):
        PipeMare(sgd([torch.zeros(1, requires_grad=True)]), **options)
    assert DECAY == pytest.approx(0.1353352832)


def spectral_radius(rate: float, curvature: float, delay: int) -> float:
    """Of the recurrence w(t+1) = w(t) - rate * curvature * w(t - delay), from its companion matrix."""
    matrix = np.diag(np.ones(delay), -1)
    matrix[0, 0] = 1.0
    matrix[0, delay] -= rate * curvature
    return max(abs(np.linalg.eigvals(matrix)))


@pytest.mark.parametrize('delay', [0, 1, 2, 3, 5, 7, 10, 15, 20])
def test_the_stability_limit_is_where_an_eigenvalue_leaves_the_unit_circle(delay: int) -> None:
    curvature, low, high = 1.7, 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spectral_radius(middle, curvature, delay) <= 1 else (low, middle)
    assert stability_limit(curvature, delay) == pytest.approx(low, rel=1e-6)


class Bowl(nn.Module):
    """Gives curvature * w^2 / 2 for every row, whatever the row."""

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.curvature, self.w = curvature, nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0 + self.curvature * self.w ** 2 / 2


def size_after(delay: int, rate: float, curvature: float) -> float:
    """|w| on the first of delay + 1 stages of a real pipeline that never drains, at its largest in the
    last two periods of the oscillation."""
    model = nn.Sequential(Bowl(curvature), *(nn.Identity() for _ in range(delay)))
    pipeline = Pipeline(model, [1] * (delay + 1), schedule='pipedream', devices=virtual(delay + 1),
                        loss_fn=lambda out, y: out.mean(), optimizer=partial(torch.optim.SGD, lr=rate))
    seen = []
    step = pipeline.optimizers[0, 0].step
    pipeline.optimizers[0, 0].step = lambda: (step(), seen.append(abs(model[0].w.item())))
    row = torch.zeros(1, 1, dtype=torch.float64)
    pipeline.train([(row, row)] * (150 * (delay + 1) + 20 * (delay + 1)))
    return max(seen[-20 * (delay + 1):])


@pytest.mark.parametrize('delay', [0, 1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_real_pipeline_converges_below_the_limit_and_diverges_above(delay: int) -> None:
    limit = stability_limit(2.0, delay)
    assert size_after(delay, 0.98 * limit, 2.0) < 0.2
    assert size_after(delay, 1.02 * limit, 2.0) > 5


@pytest.mark.parametrize('wrong, message', [
    (lambda own: PipeMare(None), 'is given the optimizer of a stage'),
    (lambda own: PipeMare(torch.optim.LBFGS(own)), 'LBFGS computes the loss several times'),
    (PipeMare(torch.optim.SGD([torch.zeros(1)], lr=0.1)), 'every stage has an optimizer of its own')])
def test_what_no_stage_can_train_with_is_refused_before_it_trains(wrong, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Pipeline(nn.Sequential(nn.Linear(1, 1)), [1], schedule='pipemare', devices=virtual(1), loss_fn=mse, optimizer=wrong)


@pytest.mark.parametrize('annealing, decay', [(-1, 0.5), (float('nan'), 0.5), (0, 0.0), (0, 1.5), (0, float('nan'))])
def test_wrong_settings_are_refused(annealing: float, decay: float) -> None:
    with pytest.raises(ValueError, match='annealing is a number of updates'):
        PipeMare(torch.optim.SGD([torch.zeros(1)], lr=0.1), annealing=annealing, decay=decay)


@given(st.sampled_from(('pipemare', partial(pipedream, stashing=False))), st.integers(2, 4), st.integers(0, 99))
def test_under_autocast_newer_weights_in_a_backward_take_a_recompute(schedule, stages: int, seed: int) -> None:
    """Without one a layer's copy of its weights would be as in the forward: as if they had been stashed."""
    torch.manual_seed(seed)
    start = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(stages)))
    batches = [tuple(torch.randn(2, 4, 3)) for _ in range(stages + 2)]
    weights = {}
    for rule in (schedule, 'pipedream'):
        for checkpoint in ('never', 'always'):
            model = copy.deepcopy(start)
            pipeline = Pipeline(model, [1] * stages, schedule=rule, devices=virtual(stages), loss_fn=mse, optimizer=sgd,
                                checkpoint=checkpoint)
            with torch.autocast('cpu', torch.bfloat16):
                if rule == schedule and checkpoint == 'never':
                    with pytest.raises(ValueError, match="keeps the copies that it took: pass checkpoint='always'"):
                        pipeline.train(batches)
                    assert all(map(torch.equal, model.parameters(), start.parameters()))
                    pipeline.train(batches[:1])   # nothing is late
                    continue
                pipeline.train(batches)
            weights[rule, checkpoint] = [*model.parameters()]
    stashed = weights['pipedream', 'never']
    assert all(map(torch.equal, weights['pipedream', 'always'], stashed))
    assert not all(map(torch.equal, weights[schedule, 'always'], stashed))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3), st.data())
def test_only_a_stage_that_corrects_takes_deltas_and_only_of_its_shapes(shapes: list, data) -> None:
    def made(corrects: bool) -> PipeMare:
        own = PipeMare(sgd([nn.Parameter(torch.ones(shape)) for shape in shapes]))
        own.of_stage(1.0, corrects=corrects)
        for parameter in own._parameters():
            parameter.grad = torch.ones_like(parameter)
        return own

    one, other, last = made(True), made(True), made(False)
    one.step()
    other.load_state_dict(saved := one.state_dict())
    assert all(torch.equal(other.state[b]['delta'], one.state[a]['delta'])
               for a, b in zip(one._parameters(), other._parameters()))
    last.load_state_dict(saved)
    assert not any('delta' in values for values in last.state_dict()['state'].values())
    number = data.draw(st.integers(0, len(shapes) - 1))
    saved['state'][number]['delta'] = torch.ones(1, *shapes[number])   # would broadcast
    with pytest.raises(ValueError, match=f"parameter {number} is of shape .*, and the 'delta'"):
        other.load_state_dict(saved)
