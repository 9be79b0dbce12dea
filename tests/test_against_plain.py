"""An engine's step against the plain model: right gradients are left alone, a factor is named, with the count it is."""

import copy
import random
import re
import warnings

import pytest
import torch
from torch import nn

from fewgpu.against_plain import against_plain
from fewgpu.pipeline import Pipeline

LOSS = nn.functional.mse_loss


class Case:
    """A random network and mini-batch, and a pipeline's step on it."""

    def __init__(self, draw: random.Random) -> None:
        self.stages, self.chunks, self.rows = draw.randint(1, 3), draw.randint(2, 6), draw.randint(12, 40)
        torch.manual_seed(draw.randrange(10**6))
        widths = [draw.randint(2, 8) for _ in range(self.stages + 1)]
        self.plain = nn.Sequential(*(layer for pair in zip(widths, widths[1:])
                                     for layer in (nn.Linear(*pair), nn.Tanh())))
        self.x, self.y = torch.randn(self.rows, widths[0]), torch.randn(self.rows, widths[-1])

    def step(self, factor: float = 1.0) -> str:
        model = copy.deepcopy(self.plain)
        pipe = Pipeline(model, [2] * self.stages, chunks=self.chunks, loss_fn=lambda *pair: LOSS(*pair) * factor)
        loss = pipe.step(self.x, self.y)
        return self.said(loss, {name: parameter.grad for name, parameter in pipe.module.named_parameters()})

    def said(self, loss: object, gradients: dict) -> str:
        return against_plain(self.plain, LOSS, self.x, self.y, loss, gradients, chunks=self.chunks)

    def right(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model = copy.deepcopy(self.plain)
        loss = LOSS(model(self.x), self.y)
        loss.backward()
        return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.fixture(params=range(8))
def case(request) -> Case:
    seed = random.randrange(10**6)
    print(f'seed {seed}')
    return Case(random.Random(seed))


def test_a_pipeline_s_step_is_the_plain_model_s_and_nothing_is_said(case: Case) -> None:
    before = copy.deepcopy(case.plain.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert case.step() == ''
    assert all(torch.equal(tensor, before[name]) for name, tensor in case.plain.state_dict().items())
    assert all(parameter.grad is None for parameter in case.plain.parameters())


def test_a_loss_that_is_scaled_twice_or_added_up_is_told_by_its_factor_and_the_count_that_it_is(case: Case) -> None:
    added, twice = case.step(float(case.chunks)), case.step(1 / case.chunks)
    assert added.startswith(f'gradients are {case.chunks} times')
    assert re.search(rf'micro-batches, {case.chunks}[:,]', added) and 'averaged' in added and 'so is the loss' in added
    assert twice.startswith(f'gradients are {1 / case.chunks:.3g} times') and 'scaled twice' in twice
    assert re.search(rf'1 over the number of micro-batches, {case.chunks}[:,]', twice)


def test_all_counts_that_fit_are_named(case: Case) -> None:
    for ranks in (1, case.chunks, case.chunks + 1):
        model = copy.deepcopy(case.plain)
        loss = LOSS(model(case.x), case.y) * case.chunks
        loss.backward()
        said = against_plain(case.plain, LOSS, case.x, case.y, loss,
                             {name: each.grad for name, each in model.named_parameters()},
                             chunks=case.chunks, ranks=ranks)
        assert re.search(rf'that is the number of micro-batches, {case.chunks}[:,]', said)
        assert bool(re.search(rf', or the number of ranks, {ranks}[:,]', said)) == (ranks == case.chunks)


def test_what_is_wrong_elsewhere_is_told_apart(case: Case) -> None:
    loss, gradients = case.right()
    assert case.said(loss, gradients) == ''
    assert case.said(3 * loss, gradients).startswith('gradients are right, but the loss is 3 times')
    other = {name: -gradient for name, gradient in gradients.items()}
    assert 'point elsewhere (cosine -1.00)' in case.said(loss, other)
    assert case.said(loss, dict.fromkeys(gradients)).startswith('gradients are 0 times')
    name = random.choice([*gradients])
    for wrong in (float('nan'), float('inf')):
        overflown = {**gradients, name: gradients[name] * wrong}
        assert case.said(loss, overflown).startswith('there are infinities or NaNs in the gradients, ')
        assert case.said(loss * wrong, gradients).startswith('there are infinities or NaNs in the loss, ')
    with pytest.raises(ValueError, match=f"{name!r} is in one of both only"):
        case.said(loss, {other: gradient for other, gradient in gradients.items() if other != name})


def test_where_the_plain_model_itself_has_no_finite_loss_that_is_what_is_said(case: Case) -> None:
    loss, gradients = case.right()
    case.x[0] = float('nan')
    assert case.said(loss, gradients).startswith("the plain model's own loss or gradients are not finite")
