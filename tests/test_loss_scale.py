"""A dynamic loss scale: skips, grows and shrinks as torch.amp.GradScaler does on the plain model, on every engine."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu import Pipeline, launch
from fewgpu.checkpoint import Saved, load_training_state, training_state
from fewgpu.device import Device
from fewgpu.hybrid import hybrid, parallelize
from fewgpu.loss_scale import LossScale
from fewgpu.models import gpt, next_token_loss
from fewgpu.spill import Spilled

LAYERS, ROWS, WIDTH = 4, 8, 4


class Blow(torch.autograd.Function):
    """The identity, whose gradient overflows if it is told so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, lit: torch.Tensor) -> torch.Tensor:
        ctx.lit = bool(lit)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * (torch.inf if ctx.lit else 1.0), None


class Fused(nn.Module):
    """A layer with a fuse. The last column of the inputs goes through all layers, and where it has the number of this
    one, the gradient of the micro-batch overflows here: in this layer and in those before."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, marks = x[:, :-1], x[:, -1:].detach()
        return torch.cat([Blow.apply(self.linear(values).tanh(), (marks == self.number).any()), marks], 1)


def loss_fn(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output[:, :-1], y)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Fused(number) for number in range(LAYERS)))


def batches(planted: list[dict[int, int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One a step; `planted` says which micro-batches (of two) overflow, in which layer."""
    torch.manual_seed(1)
    found = []
    for overflows in planted:
        x, y = torch.randn(ROWS, WIDTH + 1), torch.randn(ROWS, WIDTH)
        x[:, -1] = -1.0
        for micro_batch, layer in overflows.items():
            x[micro_batch * ROWS // 2, -1] = layer
        found.append((x, y))
    return found


def adam(parameters: Any) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.01)


def plain(planted: list[dict[int, int]], constants: tuple, micro_batches: int) -> tuple[list[float], dict]:
    """The scale after every step, and the weights, of the plain model with torch's scaler."""
    model = network()
    optimizer = adam(model.parameters())
    initial, growth, backoff, interval = constants
    scaler, scales = torch.amp.GradScaler('cpu', initial, growth, backoff, interval), []
    for x, y in batches(planted):
        optimizer.zero_grad()
        for part in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
            scaler.scale(loss_fn(model(part[0]), part[1]) / micro_batches).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, model.state_dict()


def scaled(make: Callable[[LossScale], Any], planted: list[dict[int, int]], constants: tuple
           ) -> tuple[list[float], dict]:
    loss_scale, scales = LossScale(*constants), []
    engine = make(loss_scale)
    for x, y in batches(planted):
        loss = engine.step(x, y)
        assert loss.isfinite()   # it is not scaled
        scales.append(loss_scale.scale)
    assert all(parameter.grad is None for parameter in engine.parameters())
    return scales, engine.state_dict()


def pipeline(schedule: str, balance: list[int], loss_scale: LossScale | None, rows: int = 2, chunks: int = 2
             ) -> Pipeline:
    return Pipeline(network(), balance, schedule=schedule, chunks=chunks, loss_fn=loss_fn, optimizer=adam,
                    loss_scale=loss_scale, devices=None if dist.is_initialized() else ['cpu'] * rows)


ENGINES: dict[str, tuple[Callable[[LossScale], Any], int]] = {   # and how many micro-batches they make
    **{name: (partial(pipeline, name, [2, 2]), 2) for name in ('gpipe', '1f1b', 'zb-h1', 'zb-h2', 'gems')},
    **{name: (partial(pipeline, name, [1, 1, 1, 1]), 2) for name in ('interleaved', 'v-shape')},
    'Spilled': (lambda scale: Spilled(network(), [1, 3], device=Device(), loss_fn=loss_fn, optimizer=adam,
                                      loss_scale=scale), 1),
}
plans = st.lists(st.dictionaries(st.integers(0, 1), st.integers(0, LAYERS - 1), max_size=2)
                 | st.just({}), min_size=1, max_size=8)
constants = st.tuples(st.integers(0, 127).map(lambda n: 2.0**n),   # the largest overflow by themselves
                      st.sampled_from((2.0, 4.0)), st.sampled_from((0.5, 2.0**-20)), st.integers(1, 3))


@pytest.mark.parametrize('name', ENGINES)
@settings(max_examples=15)
@given(planted=plans, constants=constants)
def test_steps_that_are_skipped_scales_and_weights_are_torchs(name: str, planted: list, constants: tuple) -> None:
    make, micro_batches = ENGINES[name]
    (scales, weights), (expected, wanted) = scaled(make, planted, constants), plain(planted, constants, micro_batches)
    assert scales == expected
    for key, value in wanted.items():
        assert torch.equal(weights[key], value), key


def on_ranks(cases: list[tuple]) -> list:
    made = {'1f1b': partial(pipeline, '1f1b', [3, 1]), 'gems': partial(pipeline, 'gems', [2, 2])}
    found = [[scaled(make, *case) for make in made.values()] for case in cases]
    for index, (planted, constants) in enumerate(cases):   # each replica has one of the two micro-batches
        loss_scale, rank = LossScale(*constants), dist.get_rank()
        engine = hybrid(network(), [LAYERS], replicas=2, loss_fn=loss_fn, optimizer=adam, loss_scale=loss_scale)
        scales = []
        for x, y in batches(planted):
            engine.step(x.chunk(2)[rank], y.chunk(2)[rank])
            scales.append(loss_scale.scale)
        found[index].append((scales, engine.state_dict()))
    return found


CASES = [([{0: 3}, {}, {}, {1: 0}, {}], (2.0**16, 2.0, 0.5, 2)), ([{}, {0: 1, 1: 2}, {}], (2.0**126, 2.0, 2.0**-30, 1)),
         ([{1: 1}, {1: 0}, {}, {}], (2.0**4, 2.0, 0.5, 1))]


@pytest.mark.slow
def test_ranks_and_replicas_agree() -> None:
    for of_rank in launch(on_ranks, 2, args=(CASES,)):
        for (planted, constants), engines in zip(CASES, of_rank):
            expected, wanted = plain(planted, constants, 2)
            for scales, weights in engines:
                assert scales == expected
                assert all(torch.equal(value, wanted[key]) for key, value in weights.items())


@pytest.mark.parametrize('schedule', ('pipedream', '2bw', 'pipemare'))
@settings(max_examples=15)
@given(planted=plans)
def test_where_updates_are_within_a_step_each_stage_leaves_out_its_own(schedule: str, planted: list) -> None:
    """A stage's optimizer has counted the updates whose gradients were finite in all of its layers."""
    loss_scale = LossScale(2.0**10, interval=100)
    engine = pipeline(schedule, [2, 2], loss_scale)
    for x, y in batches(planted):
        engine.step(x, y)
    every = 1 if schedule == 'pipedream' else 2
    for stage, last_layer in enumerate((1, 3)):
        bad = [[layer >= 2 * stage for layer in overflows.values()] for overflows in planted]
        left_out = sum(map(sum, bad)) if every == 1 else sum(map(any, bad))
        state = engine.optimizer_state()['state'].get(f'{last_layer}.linear.bias', {})
        assert state.get('step', 0) == len(planted) * 2 // every - left_out
    assert loss_scale.scale == 2.0**(10 - sum(map(bool, planted)))
    assert all(value.isfinite().all() for value in engine.state_dict().values())


@pytest.mark.parametrize('schedule', ('pipedream', '2bw', 'pipemare', '1f1b'))
@pytest.mark.parametrize('long', (False, True))
def test_a_power_of_two_without_overflow_changes_no_bit(schedule: str, long: bool) -> None:
    found = []
    for loss_scale in (None, LossScale(2.0**20, interval=2)):
        engine = pipeline(schedule, [1, 1, 2], loss_scale, rows=3, chunks=3)
        data = [(x[:6], y[:6]) for x, y in batches([{}] * 4)]
        losses = engine.train(data) if long else [engine.step(*batch) for batch in data]
        found.append((torch.stack(losses), engine.state_dict()))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(value, found[1][1][key]) for key, value in found[0][1].items())


@given(st.lists(st.booleans(), max_size=30), constants, st.integers(0, 29))
def test_the_scale_changes_as_torchs_and_goes_through_a_checkpoint(overflows: list[bool], constants: tuple,
                                                                   at: int) -> None:
    mine = LossScale(*constants)
    initial, growth, backoff, interval = constants
    scaler = torch.amp.GradScaler('cpu', initial, growth, backoff, interval)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for step, overflow in enumerate(overflows):
        if step == at:
            model, saved = nn.Linear(1, 1), training_state(nn.Linear(1, 1), loss_scale=mine)
            mine = LossScale()
            load_training_state(Saved(1, [saved]), model, loss_scale=mine)
            mine.growth, mine.backoff, mine.interval = growth, backoff, interval
        if overflow and mine.scale * backoff < torch.finfo(torch.float32).tiny:
            return   # the next law
        scaler.scale(parameter.sum())
        parameter.grad = torch.tensor([torch.inf if overflow else 1.0])
        scaler.step(optimizer)
        scaler.update()
        mine.update(overflow)
        assert mine.scale == scaler.get_scale()


@given(st.floats(1e-30, 1e30), st.floats(0.01, 0.99), st.integers(0, 2000))
def test_overflows_in_a_row_end_in_a_sentence_before_the_scale_is_of_no_use(initial: float, backoff: float, most: int
                                                                          ) -> None:
    scale, tiny = LossScale(initial, backoff=backoff), torch.finfo(torch.float32).tiny
    for overflows in range(most):
        gradient = torch.full((1,), 2.0**-20)
        assert scale.unscale([gradient]) and gradient.isfinite().all()   # its reciprocal is a number, too
        if initial * backoff**(overflows + 1) < 0.99 * tiny:
            before = scale.state_dict()
            with pytest.raises(FloatingPointError, match='look for inf or NaN'):
                scale.update(overflow=True)
            assert scale.state_dict() == before
            break
        if initial * backoff**(overflows + 1) > 1.01 * tiny:
            scale.update(overflow=True)
        else:
            break   # too close to call


@pytest.mark.parametrize('name', ['Spilled', '1f1b'])
def test_a_model_whose_loss_is_never_finite_ends_so(name: str) -> None:
    scale, inputs = LossScale(2.0**-120), torch.full((2, 5), math.nan)
    model = ENGINES[name][0](scale)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(FloatingPointError, match='although the scale is down to'):
        for _ in range(20):
            model.step(inputs, torch.zeros(2, 4))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_what_is_accumulated_is_divided_once() -> None:
    found = []
    for loss_scale in (None, LossScale(2.0**12)):
        engine = pipeline('1f1b', [2, 2], loss_scale)
        for number, batch in enumerate(batches([{}] * 4)):
            engine.step(*batch, update=number % 2 == 1)
        found.append(engine.state_dict())
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


@pytest.mark.parametrize('kind', ('cpu', pytest.param('cuda', marks=pytest.mark.gpu)))
def test_gradients_that_half_precision_cannot_hold_survive_only_with_a_scale(kind: str) -> None:
    """A loss so flat that float16 rounds its gradients to zero; torch's scaler on the plain model finds the same."""
    def flat(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output.float(), y) * 1e-9

    def linear() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).to(kind)

    x, y = torch.randn(2, ROWS, WIDTH, device=kind)
    moved, start = [], linear()
    for loss_scale in (None, LossScale(2.0**20)):
        model = Pipeline(linear(), [1, 2], loss_fn=flat, optimizer=partial(torch.optim.SGD, lr=1e6), devices=[kind] * 2,
                         loss_scale=loss_scale)
        with torch.autocast(kind, torch.float16):
            model.step(x, y)
        moved.append([not torch.equal(a, b) for a, b in zip(model.parameters(), start.parameters())])
    assert moved == [[False] * 6, [True] * 6]
    plain, scaler = linear(), torch.amp.GradScaler(kind, 2.0**20)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e6)
    with torch.autocast(kind, torch.float16):
        loss = flat(plain(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    for mine, its in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(mine, its, rtol=1e-5 if kind == 'cuda' else 0.0, atol=1e-6 if kind == 'cuda' else 0.0)


def on_parts() -> None:
    with pytest.raises(ValueError, match='another tensor-parallel part has overflowed'):
        parallelize(gpt(2, 8, 2, vocabulary=6, longest=5), '1x1x2', loss_fn=next_token_loss, optimizer=adam,
                    loss_scale=LossScale())


@pytest.mark.slow
def test_parts_that_would_not_know_of_each_other_are_refused() -> None:
    launch(on_parts, 2)


def test_what_cannot_be_is_refused_with_the_remedy() -> None:
    for wrong in ({'initial': 0.0}, {'growth': 0.5}, {'backoff': 1.0}, {'interval': 0}, {'interval': 2.5},
                  {'initial': math.inf}, {'growth': math.inf}, {'backoff': math.nan}, {'initial': 'dynamic'}):
        with pytest.raises(ValueError, match='a scale is above 0'):
            LossScale(**wrong)
    for wrong in (1e300, 1e-300, 3.5e38):
        with pytest.raises(ValueError, match='which float32 still holds, not'):
            LossScale(wrong)
    scale = LossScale()
    with pytest.raises(ValueError, match='which float32 still holds, not 0.0'):
        scale.load_state_dict({'scale': 0.0, 'good': 3})
    assert scale.state_dict() == LossScale().state_dict()
    with pytest.raises(ValueError, match='needs optimizer'):
        Pipeline(network(), [2, 2], loss_fn=loss_fn, loss_scale=LossScale(), devices=['cpu'] * 2)
    with pytest.raises(TypeError, match='GradScaler is for those'):
        Pipeline(network(), [2, 2], loss_fn=loss_fn, optimizer=adam, loss_scale=torch.amp.GradScaler('cpu'),
                 devices=['cpu'] * 2)
    with pytest.raises(ValueError, match='trains by its own step'):
        ENGINES['Spilled'][0](LossScale()).begin(torch.zeros(2, 5), torch.zeros(2, 4), None, [])
