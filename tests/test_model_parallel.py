"""Naive model parallelism: the plain model over several devices, one of which works at a time."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import GPipe, ModelParallel
from fewgpu.device import one_thread


def layers() -> nn.Sequential:
    """With batch norm, which sees the whole mini-batch here as in the plain model."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 3))


@settings(max_examples=15)
@given(balance=st.sampled_from([(4,), (1, 3), (2, 2), (1, 1, 2), (1, 1, 1, 1)]), rows=st.integers(2, 9))
def test_three_training_steps_equal_plain_bit_for_bit(balance: tuple, rows: int) -> None:
    plain, batches = layers(), [torch.randn(rows, 4) for _ in range(3)]
    model = ModelParallel(layers(), balance, devices=['cpu'] * len(balance))
    model.load_state_dict(plain.state_dict())
    results = []
    for module in (plain, model):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for x in batches:
            optimizer.zero_grad()
            with one_thread():   # a device has one core
                output = module(x)
                output.square().mean().backward()
            optimizer.step()
        results.append([output.detach(), *module.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_there_is_one_micro_batch_without_recompute_and_one_device_works_at_a_time() -> None:
    model = ModelParallel(layers(), [1, 2, 1], devices=['cpu'] * 3)
    model(torch.rand(64, 4)).sum().backward()
    work = [[span for span in row if span.op.kind in 'FRB'] for row in model.timeline.rows]
    assert [[str(span.op) for span in row] for row in work] == [['F0', 'B0']] * 3
    in_order = [row[0] for row in work] + [row[1] for row in reversed(work)]
    assert all(a.end <= b.start for a, b in zip(in_order, in_order[1:]))


def test_it_is_a_pipeline_with_its_attributes_and_errors() -> None:
    model = ModelParallel(layers(), [2, 2], devices=['cpu'] * 2)
    assert isinstance(model, GPipe)
    assert (model.chunks, model.checkpoint, model.balance) == (1, 'never', [2, 2])
    with pytest.raises(ValueError, match='fewgpu.balance'):
        ModelParallel(layers(), [1])
    with pytest.raises(IndexError, match='too few devices'):
        ModelParallel(layers(), [2, 2], devices=['cpu'])
