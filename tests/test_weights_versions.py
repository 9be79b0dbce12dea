"""Which weights an operation uses: rules that keep versions, rules that keep none, and what each costs."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import Pipeline
from fewgpu.pipemare import PipeMare, delays
from fewgpu.schedule import (Schedule, ScheduleError, check, gpipe, one_f_one_b, pipedream, pipemare,
                             staleness, two_bw, versions, versions_alive, with_recompute, with_updates)
from fewgpu.schedule.counts import versions_kept
from fewgpu.simulate import Costs, simulate
from tests import delayed
from tests.networks import evenly, virtual

mse = nn.functional.mse_loss
sgd = partial(torch.optim.SGD, lr=0.1)
RULES = {'stashed': pipedream, 'vertical': partial(pipedream, vertical_sync=True),
         'unstashed': partial(pipedream, stashing=False), 'corrected': pipemare}


def chain(layers: int, width: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).double()


def data(count: int, rows: int = 2, width: int = 3) -> list[tuple]:
    return [tuple(torch.randn(2, rows, width, dtype=torch.float64)) for _ in range(count)]


def chain_rule(forward: Sequence[torch.Tensor], backward: Sequence[torch.Tensor], x: torch.Tensor,
               y: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of linear layers by hand: activations of weights `forward`, carried back by `backward`."""
    inputs = [x]
    for weight in forward:
        inputs.append(inputs[-1] @ weight.T)
    carried = 2 * (inputs[-1] - y) / y.numel()
    gradients = []
    for weight, value in zip(reversed(backward), reversed(inputs[:-1])):
        gradients.insert(0, carried.T @ value)
        carried = carried @ weight
    return gradients


Between = Callable[[list, int, int, int], torch.Tensor]   # of a layer's versions, its stage, F, B


def by_hand(weights: list[torch.Tensor], stage_of: Sequence[int], batches: list, lr: float, back: Between
            ) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
    """Train them one mini-batch after the other: a forward at versions of the past, a backward at others.

    Returns all versions of every layer, and the gradients of every mini-batch.
    """
    history, taken, n = [[weight.clone()] for weight in weights], [], 1 + max(stage_of)
    for k, (x, y) in enumerate(batches):
        first = [max(k - (n - 1 - stage), 0) for stage in stage_of]
        forward = [past[version] for past, version in zip(history, first)]
        backward = [back(past, stage, version, k) for past, stage, version in zip(history, stage_of, first)]
        taken.append(chain_rule(forward, backward, x, y))
        for past, gradient in zip(history, taken[-1]):
            past.append(past[-1] - lr * gradient)
    return history, taken


def trained(weights: list[torch.Tensor], balance: Sequence[int], schedule: Callable, batches: list, **options
            ) -> list[torch.Tensor]:
    model = chain(len(weights))
    for layer, weight in zip(model, weights):
        layer.weight.data = weight.clone()
    Pipeline(model, balance, schedule=schedule, loss_fn=mse, devices=virtual(len(balance)),
             **{'optimizer': sgd, **options}).train(batches)
    return [layer.weight.detach() for layer in model]


def weights_of(layers: int) -> list[torch.Tensor]:
    return [layer.weight.detach() for layer in chain(layers)]


close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    balance = draw(st.lists(evenly(1, 3), min_size=1, max_size=4))
    return balance, [stage for stage, count in enumerate(balance) for _ in range(count)]


@given(cuts(), evenly(1, 9))
def test_without_stashing_a_backward_meets_the_newest_weights(cut: tuple, count: int) -> None:
    balance, stage_of = cut
    weights, batches = weights_of(sum(balance)), data(count)
    history, _ = by_hand(weights, stage_of, batches, 0.1, lambda past, stage, first, now: past[now])
    close(trained(weights, balance, RULES['unstashed'], batches), [past[-1] for past in history])


@given(cuts(), evenly(1, 12), st.floats(0.05, 1.0))
def test_pipemare_carries_gradients_back_by_corrected_weights(cut: tuple, count: int, decay: float) -> None:
    """u = w - tau delta, delta an average of the changes of w that forgets by gamma = decay^(1 / tau)."""
    balance, stage_of = cut
    n = len(balance)

    def corrected(past: list, stage: int, first: int, now: int) -> torch.Tensor:
        gamma, delta = decay ** (1 / max(n - 1 - stage, 1)), torch.zeros_like(past[0])
        for before, after in zip(past, past[1:]):
            delta = gamma * delta + (1 - gamma) * (after - before)
        return past[now] - (now - first) * delta

    weights, batches = weights_of(sum(balance)), data(count)
    history, _ = by_hand(weights, stage_of, batches, 0.1, corrected)
    found = trained(weights, balance, 'pipemare', batches,
                    optimizer=lambda own: PipeMare(sgd(own), decay=decay))
    close(found, [past[-1] for past in history])


@given(cuts(), evenly(1, 9))
def test_a_correction_that_learns_nothing_is_none(cut: tuple, count: int) -> None:
    """D = 1 keeps delta at zero: bit by bit what an unstashed run gives."""
    weights, batches = weights_of(len(cut[1])), data(count)
    plain = trained(weights, cut[0], RULES['unstashed'], batches)
    none = trained(weights, cut[0], 'pipemare', batches, optimizer=lambda own: PipeMare(sgd(own), decay=1.0))
    assert all(map(torch.equal, plain, none))


def test_without_stashing_the_gradient_is_that_of_no_single_version() -> None:
    """In a stage of two layers the first one's gradient comes through the second, at newer weights."""
    stage_of, batches = [0, 0, 1, 1, 2, 2], data(6)
    weights = [torch.eye(3, dtype=torch.float64) + 0.3 * weight for weight in weights_of(6)]   # no gradient fades
    history, taken = by_hand(weights, stage_of, batches, 0.1, lambda past, stage, first, now: past[now])
    close(trained(weights, [2, 2, 2], RULES['unstashed'], batches), [past[-1] for past in history])
    for versions_taken in itertools.product(range(6), repeat=3):   # any version of each stage, as a whole
        point = [past[versions_taken[stage]] for past, stage in zip(history, stage_of)]
        there = chain_rule(point, point, *batches[5])[0]
        assert (there - taken[5][0]).abs().max() > 1e-9 * there.abs().max()   # rounding is 1e-15


@pytest.mark.parametrize('schedule', ['unstashed', 'stashed', 'corrected'])
def test_a_convolution_reads_its_weights_in_the_backward(schedule: str) -> None:
    """It saves a view of them, so that a backward meets the newest. (Of copies, as autocast makes, test_pipemare.py.)"""
    def run(rule: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Conv1d(2, 2, 3, padding=1, bias=False) for _ in range(4)))
        batches = [tuple(torch.randn(2, 2, 2, 5)) for _ in range(6)]
        Pipeline(model, [3, 1], schedule=RULES[rule], loss_fn=mse, devices=virtual(2),
                 optimizer=lambda own: PipeMare(sgd(own), decay=1.0)).train(batches)
        return [*model.parameters()]

    assert all(map(torch.equal, run(schedule), run('stashed'))) == (schedule == 'stashed')


class Spy(nn.Linear):
    """Notes its weights, and those that its backward meets."""

    def __init__(self, fails: int = -1) -> None:
        super().__init__(3, 3, bias=False)
        self.double()
        self.met, self.fails = [], fails

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out, weight = super().forward(value), self.weight
        if out.requires_grad:
            out.register_hook(lambda gradient: self._note(weight))
        return out

    def _note(self, weight: torch.Tensor) -> None:
        self.met.append(weight.detach().clone())
        if len(self.met) - 1 == self.fails:
            raise ZeroDivisionError('in a backward')


@pytest.mark.parametrize('checkpoint', ['never', 'always'])
def test_corrected_weights_are_there_for_the_backward_only(checkpoint: str) -> None:
    """Afterwards the weights are what they were, bit by bit, also after a backward that fails."""
    spy = Spy(fails=4)
    with torch.no_grad():
        layers = [nn.Linear(3, 3).double() for _ in range(2)]
    pipeline = Pipeline(nn.Sequential(spy, *layers), [1, 1, 1], schedule='pipemare', loss_fn=mse,
                        optimizer=sgd, devices=virtual(3), checkpoint=checkpoint)
    after = []
    step = pipeline.optimizers[0, 0].step
    pipeline.optimizers[0, 0].step = lambda: (step(), after.append(spy.weight.detach().clone()))
    with pytest.raises(ZeroDivisionError):
        pipeline.train(data(6))
    assert len(after) == 4 and torch.equal(spy.weight.detach(), after[-1])
    assert not any(torch.equal(spy.met[k], after[k - 1]) for k in range(2, 5))


@given(evenly(1, 5), evenly(1, 12), evenly(1, 3))
def test_versions_of_every_rule(n: int, m: int, every: int) -> None:
    runs = {name: make(n, m) for name, make in RULES.items()}
    runs['corrected'] = pipemare(n, m * every, update_every=every)
    for run in runs.values():
        check(run)
    for s in range(n):
        stashed = [delayed.pipedream(n, k)[s] for k in range(m)]
        assert [runs['stashed'].version(s, k, 'B') for k in range(m)] == stashed
        admitted = [max(k - n + 1, 0) for k in range(m)]
        assert [runs['vertical'].version(s, k, 'B') for k in range(m)] == admitted
        assert [runs['unstashed'].version(s, k, 'F') for k in range(m)] == stashed
        assert [runs['unstashed'].version(s, k, 'B') for k in range(m)] == [*range(m)]
    if m >= 2 * n:
        assert versions_alive(runs['vertical']) == [n] * n
        assert versions_alive(runs['stashed']) == [n - s for s in range(n)]
    assert versions_alive(runs['unstashed']) == versions_alive(runs['corrected']) == [1] * n
    if m * every >= n + every:
        close(torch.tensor(delays(runs['corrected'])), torch.tensor([(n - 1 - s) / every for s in range(n)]))


def test_vertical_sync_takes_no_version_that_a_stage_has_yet_to_make() -> None:
    on_time = pipedream(2, 3, vertical_sync=True)
    ops = {str(op): op for op in on_time.rows[1]}
    late = tuple(ops[name] for name in 'F0 B0 F1 F2 U0 B1 U1 B2 U2'.split())
    with pytest.raises(ScheduleError, match='F2 takes weight version 1 of stage 1, which no update has made'):
        check(replace(on_time, rows=(on_time.rows[0], late)))
    check(replace(on_time, rows=(on_time.rows[0], late), weights='stashed'))
    with pytest.raises(ValueError, match='stashing=True'):
        pipedream(2, 3, vertical_sync=True, stashing=False)


MAKES = {**RULES, '2bw': lambda n, m: two_bw(n, m, update_every=n),
         '1f1b': lambda n, m: with_updates(one_f_one_b(n, m)),
         'gpipe': lambda n, m: with_updates(gpipe(n, m))}


@settings(max_examples=12)
@given(st.sampled_from(sorted(MAKES)), evenly(1, 4), evenly(1, 3))
def test_a_device_holds_as_many_versions_as_the_schedule_says(name: str, n: int, rounds: int) -> None:
    """Right after an update nothing else of that size lives: bytes are so many times the weights."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(n)))
    weights, devices = 64 * 64 * 4, virtual(n)
    for device in devices:
        device.meter()
    m = n * rounds
    pipeline = Pipeline(model, [1] * n, devices=devices, loss_fn=mse, chunks=m, optimizer=sgd,
                        schedule=MAKES[name] if name in ('2bw', *RULES) else name)
    pipeline.step(torch.randn(m, 64), torch.randn(m, 64))
    schedule = MAKES[name](n, m)
    delta = {s: name == 'corrected' and s < n - 1 for s in range(n)}   # PipeMare's own copy
    for s, (row, spans) in enumerate(zip(schedule.rows, pipeline.trace.rows)):
        wanted = [count + delta[s] for _, _, count in versions_kept(schedule, row)]
        assert [span.live // weights for span in spans if span.op.kind == 'U'] == wanted
    used = {(span.op.kind, span.op.stage, span.op.micro_batch): span.version
            for spans in pipeline.trace.rows for span in spans if span.op.kind in 'FB'}
    assert used == {op[:3]: version for op, version in versions(schedule).items() if op.kind in 'FB'}


@given(evenly(1, 6), evenly(0, 3), evenly(1, 3), st.tuples(*[evenly(0, 1000)] * 3))
def test_memory_of_the_first_device_is_that_of_the_2bw_paper(d: int, more: int, updates: int, sizes: tuple
                                                             ) -> None:
    """arXiv 2006.09503, section 3.3: |W| / d weights a device; a stash is |A_total(b)| / d, and the
    input |A_input(b)| that stays if it is recomputed."""
    weights, inner, inputs = sizes
    m = d + more
    costs = Costs(weights=weights, input=inputs, stash=inner + inputs)

    def peak(schedule: Schedule, checkpoint: str) -> int:
        return simulate(with_recompute(schedule, checkpoint), costs).peak(0)

    double = two_bw(d, m * (1 + updates), update_every=m)
    assert peak(double, 'always') == 2 * weights + inner + d * inputs
    assert peak(double, 'never') == 2 * weights + d * (inner + inputs)
    assert peak(with_updates(gpipe(d, m)), 'always') == weights + inner + m * inputs
    assert peak(with_updates(one_f_one_b(d, m)), 'always') == weights + inner + d * inputs
    assert peak(pipedream(d, 2 * d), 'never') == d * weights + d * (inner + inputs)


@pytest.mark.parametrize('n', [2, 3, 4])
@pytest.mark.parametrize('name', ['2bw', 'pipedream', '1f1b', 'gpipe'])
def test_a_real_first_device_stashes_what_the_formulas_say(name: str, n: int) -> None:
    """In units of what a forward of the warm-up adds: d of them, or all m under GPipe."""
    m, devices = 2 * n, virtual(n)
    devices[0].meter()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(n)))
    pipeline = Pipeline(model, [1] * n, devices=devices, loss_fn=mse, chunks=m, schedule=name, optimizer=sgd)
    pipeline.train([tuple(torch.randn(2, m * 2000, 4)) for _ in range(3)])
    live = [span.live for span in pipeline.trace.rows[0] if span.op.kind == 'F']
    assert max(live) // (live[1] - live[0]) == (m if name == 'gpipe' else n)


@given(evenly(1, 5), evenly(1, 4))
def test_staleness_of_vertical_sync_is_the_same_on_every_stage(n: int, rounds: int) -> None:
    late = staleness(pipedream(n, n * rounds, vertical_sync=True))
    assert all(late[s, k] == min(k, n - 1) for s in range(n) for k in range(n * rounds))
