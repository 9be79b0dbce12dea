"""Laws of random streams: who draws what does not depend on who runs first."""

import contextlib
import time

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn import functional as F

from fewgpu.gpipe import GPipe
from fewgpu.recompute import dropping_graph
from fewgpu.rng import StepSeed, Stream
from tests.layers import Call
from tests.networks import Case, cases, seeded, virtual
from tests.reference import Pipelined, differences, gradients, seen
from tests.test_gpipe_equals_plain import train_step

CPU = torch.device('cpu')
DRAWING = {   # what a layer may do to draw random numbers, on a tensor of rows x 8
    'dropout': lambda x: F.dropout(x, 0.5),
    'dropout in place': lambda x: F.dropout(x * 1, 0.5, inplace=True),
    'alpha dropout': lambda x: F.alpha_dropout(x, 0.5, training=True),
    'dropout of channels': lambda x: F.dropout1d(x[:, :, None], 0.5)[:, :, 0],
    'rrelu': lambda x: F.rrelu(x, training=True),
    'gumbel softmax': lambda x: F.gumbel_softmax(x),
    'attention dropout': lambda x: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], dropout_p=0.5)[:, 0],
    'fractional pool': lambda x: F.fractional_max_pool2d(
        x[:, None, :, None] * x[:, None, None, :], 2, output_size=5).flatten(1)[:, :8],
    'rand_like': lambda x: x * torch.rand_like(x),
    'rand': lambda x: x * torch.rand(8),
    'randn': lambda x: x + torch.randn(8) * x,
    'normal_': lambda x: x * torch.empty(8).normal_(),
    'exponential_': lambda x: x * torch.empty(8).exponential_(),
    'bernoulli': lambda x: x * torch.bernoulli(torch.full((8,), 0.5)),
    'randint': lambda x: x * torch.randint(5, (8,)),
    'randperm': lambda x: x[:, torch.randperm(8)],
    'multinomial': lambda x: x[:, torch.multinomial(torch.ones(8), 8)],
    'poisson': lambda x: x * torch.poisson(torch.ones(8)),
    'distribution': lambda x: x * torch.distributions.Gamma(2.0, 1.0).sample((8,)),
}


def sequential(function, stages: int = 2) -> nn.Sequential:
    """A linear layer and one that draws, for every stage."""
    layers = [layer for _ in range(stages) for layer in (nn.Linear(8, 8), Call(function))]
    return nn.Sequential(*layers)


@pytest.mark.parametrize('how', DRAWING)
def test_a_stream_gives_the_same_numbers_again_and_leaves_the_callers_alone(how: str) -> None:
    x = torch.arange(32.).view(4, 8).cos()
    before = torch.get_rng_state()
    results = []
    for key in [(1, 0, 0), (1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]:
        with Stream(StepSeed(key[0]), *key[1:], CPU):
            results.append(torch.stack([DRAWING[how](x) for _ in range(8)]))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(results[0], results[1])
    assert not any(torch.equal(results[0], other) for other in results[2:])


@pytest.mark.parametrize('how', DRAWING)
def test_a_recompute_draws_what_its_forward_drew(how: str) -> None:
    """Else the gradients would be of another function than the outputs."""
    results = []
    for checkpoint in ('always', 'except_last', 'never'):
        with seeded(5):
            model = GPipe(sequential(DRAWING[how]), [2, 2], devices=virtual(2), chunks=3,
                          checkpoint=checkpoint)
            inputs = torch.randn(7, 8, requires_grad=True)
            outputs = model(inputs)
            outputs.sin().sum().backward()
            results.append([seen(outputs), gradients(model, inputs), torch.get_rng_state()])
    assert not differences(results[0], results[2]) and not differences(results[1], results[2])


@given(cases(without=('draws',)), st.integers(0, 99))
def test_a_model_that_draws_nothing_leaves_the_callers_generator_alone(case: Case,
                                                                       seed: int) -> None:
    engine = Pipelined(case, case.pipeline())
    with seeded(seed):
        before = torch.get_rng_state()
        train_step(engine, 0)
        assert torch.equal(torch.get_rng_state(), before)


@given(cases(start='rows', first=('linear of rows', 'dropout of rows')), st.integers(1, 3))
def test_a_step_that_draws_takes_one_number_from_the_callers_generator(case: Case,
                                                                       steps: int) -> None:
    """However many stages, micro-batches, dropouts and recomputes there are."""
    engine = Pipelined(case, case.pipeline())
    with seeded(case.seed):
        for step in range(steps):
            train_step(engine, step)
        after = torch.get_rng_state()
    with seeded(case.seed):
        for _ in range(steps):
            torch.randint(2**62, ())
        assert torch.equal(torch.get_rng_state(), after)


@given(cases(start='rows', first=('linear of rows', 'dropout of rows')))
def test_evaluation_draws_nothing(case: Case) -> None:
    model = case.pipeline().eval()
    before = torch.get_rng_state()
    model(case.inputs())
    assert torch.equal(torch.get_rng_state(), before)


@given(cases(start='sequence', first=('dropout of sequence', 'lstm with dropout')),
       st.integers(0, 99))
def test_manual_seed_repeats_a_run(case: Case, seed: int) -> None:
    results = []
    for _ in range(2):
        engine = Pipelined(case, case.pipeline())
        with seeded(seed):
            results.append([train_step(engine, step) for step in range(2)])
    assert not differences(*results)


def test_masks_differ_between_steps_stages_and_micro_batches() -> None:
    model = GPipe(nn.Sequential(nn.Dropout(0.5), Call(lambda x: (x, F.dropout(torch.ones(1, 64))))),
                  [1, 1], devices=virtual(2), chunks=4)
    masks = []
    for _ in range(3):
        first, second = model(torch.ones(4, 64))
        masks += [*first.bool(), *second.bool()]
    assert len({tuple(mask.tolist()) for mask in masks}) == 24   # 3 steps x 2 stages x 4


@given(st.lists(st.sampled_from([0.0, 0.001, 0.004]), min_size=6, max_size=6))
def test_masks_do_not_depend_on_which_stage_is_faster(pauses: list[float]) -> None:
    """Stages of one process share torch's generator, and run at the same time."""
    results = []
    for waits in (pauses, [0.0] * 6):
        waiting = iter([*waits, *[0.0] * 99])

        def slow_dropout(x, waiting=waiting):
            time.sleep(next(waiting))
            return F.dropout(x, 0.5)

        with seeded(3):
            model = GPipe(sequential(slow_dropout, 3), [2, 2, 2], devices=virtual(3), chunks=4)
            inputs = torch.ones(4, 8, requires_grad=True)
            outputs = model(inputs)
            outputs.sum().backward()
            results.append([seen(outputs), gradients(model, inputs)])
    assert not differences(*results)


def test_a_layers_own_generator_is_left_to_it() -> None:
    """And a recompute, which would draw other numbers from it, is refused."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), Call(lambda x: x * torch.rand(8, generator=generator)))
    before = torch.get_rng_state()
    outputs = GPipe(model, [1, 1], devices=virtual(2), checkpoint='never')(torch.ones(1, 8))
    assert torch.equal(torch.get_rng_state(), before)
    generator.manual_seed(3)
    assert torch.allclose(outputs, model[0](torch.ones(1, 8)) * torch.rand(8, generator=generator))
    with pytest.raises(RuntimeError, match='generator of its own'):
        GPipe(model, [1, 1], devices=virtual(2), checkpoint='always')(torch.ones(1, 8))


@given(st.sampled_from([0.0, 0.5]), st.booleans(), st.booleans())
def test_an_rnn_of_cudnn_that_draws_is_not_recomputed(dropout: float, train: bool,
                                                      again: bool) -> None:
    """cuDNN has random states of its own. (Here the operation gets as far as to say that it wants a
    GPU, or is refused before.)"""
    x = torch.ones(2, 1, 3)
    hints = 'generator of its own' if dropout and train and again else '^(?!.*of its own)'
    with dropping_graph() if again else contextlib.nullcontext():
        with Stream(StepSeed(1), 0, 0, CPU), pytest.raises(Exception, match=hints):
            torch.ops.aten._cudnn_rnn(x, [x], 1, None, x, x, 2, 3, 0, 2, False, dropout, train,
                                      False, [], None)


def test_a_step_seed_is_drawn_once_and_only_when_it_is_needed() -> None:
    with seeded(1):
        before = torch.get_rng_state()
        seed = StepSeed()
        assert torch.equal(torch.get_rng_state(), before)
        value = seed.get()
        after = torch.get_rng_state()
        assert not torch.equal(after, before)
        assert seed.get() == value and torch.equal(torch.get_rng_state(), after)
    with seeded(1):
        assert StepSeed().get() == value
        assert StepSeed().get() != value
        assert StepSeed(7).get() == 7
