"""Buffers of replicas: copies follow what somebody changes, are the first's where it was, and none follows a step."""

import copy
import random
from functools import partial

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu import Pipeline
from fewgpu.held_buffers import Followed
from fewgpu.schedule import pipedream
from tests.networks import virtual


class Counts(nn.Module):
    """Buffers of all sorts, one of them None so far."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer('mean', torch.zeros(2))
        self.register_buffer('none', None)
        self.register_buffer('number', torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.number += 1
        y = self.layer(x)
        self.mean = y.detach().mean(0)
        return y


def change(module: Counts, how: str) -> None:
    with torch.no_grad():
        if how == 'in place':
            module.mean.add_(1.0)
        elif how == 'anew':
            module.mean = torch.randn(2)
        elif how == 'given':
            module.none = torch.randn(3)
        elif how == 'taken':
            module.none = None
        elif how == 'of inference mode':
            with torch.inference_mode():
                module.mean = torch.randn(2)


@given(st.lists(st.sampled_from(['in place', 'anew', 'given', 'taken', 'of inference mode']), max_size=3), st.integers(1, 3))
def test_copies_follow_changes_and_keep_what_nobody_changed(changes: list[str], count: int) -> None:
    first = Counts()
    copies = [copy.deepcopy(first) for _ in range(count)]
    followed = Followed(first, [(module, torch.device('cpu')) for module in copies])
    for number, module in enumerate(copies):
        module.number.fill_(number + 5)   # as a step of its own would
    for how in changes:
        if how == 'in place' and first.mean.is_inference():
            continue
        change(first, how)
    followed.follow()
    for number, module in enumerate(copies):
        assert module.number == number + 5
        assert torch.equal(module.mean, first.mean) and module.mean is not first.mean
        assert (module.none is None) == (first.none is None)
        assert first.none is None or torch.equal(module.none, first.none)
    before = [module.number for module in copies]
    followed.note()
    followed.follow()
    assert all(module.number is number for module, number in zip(copies, before))


@pytest.mark.parametrize('replicas', [(1, 1), (2, 1)])
def test_buffers_may_come_and_be_of_inference_mode(replicas: tuple[int, int]) -> None:
    model = nn.Sequential(Counts(), nn.Linear(2, 2))
    pipeline = Pipeline(model, [1, 1], schedule=partial(pipedream, replicas=replicas), chunks=2, devices=virtual(sum(replicas)),
                        loss_fn=nn.functional.mse_loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    data = [(torch.randn(2, 2), torch.randn(2, 2)) for _ in range(4)]
    pipeline.train(data)
    with torch.inference_mode():
        pipeline.eval_step(*data[0])
    model[0].none = torch.tensor([random.random()])
    pipeline.train(data)
    assert torch.isfinite(pipeline.train(data)[-1])
