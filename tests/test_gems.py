"""GEMS: two replicas of the model, laid over the same devices in opposite order, train as plain SGD does."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import Pipeline
from fewgpu.schedule import (CHECKPOINTS, Op, check, gems, gpipe, one_f_one_b, stashes, versions_alive,
                             with_messages)
from fewgpu.simulate import Costs, simulate
from tests.test_placement_runs import batches, copies, layers, mse, plainly, sgd

SIZES = st.integers(1, 8), st.integers(1, 20)   # stages, micro-batches


@given(*SIZES)
def test_micro_batches_alternate_between_replicas_in_opposite_order(n: int, m: int) -> None:
    schedule = gems(n, m)
    check(with_messages(schedule))
    for s in range(n):
        assert schedule.devices_of[s] == tuple(sorted({s, n - 1 - s}))
        for i in range(m):
            assert schedule.device_at(s, i) == (n - 1 - s if i % 2 else s)


@given(*SIZES)
def test_a_device_stashes_one_micro_batch_and_keeps_one_version(n: int, m: int) -> None:
    """All its stages together."""
    schedule = gems(n, m)
    assert stashes(schedule) == versions_alive(schedule) == [1] * n
    timeline = simulate(schedule, Costs(stash=1))
    assert [timeline.peak(device) for device in range(n)] == [1] * n
    held = simulate(schedule, Costs(weights=1))
    assert [held.peak(device) for device in range(n)] == [2 - (2 * device == n - 1) for device in range(n)]


@given(*SIZES, st.integers(1, 50), st.integers(1, 50))
def test_a_forward_fills_what_the_backward_of_the_other_replica_leaves_idle(n, m, f, b) -> None:
    """Waves: a forward down all devices; then, a micro-batch each, a backward up and a forward behind it."""
    timeline = simulate(gems(n, m), Costs(F=f, B=b))
    assert timeline.makespan == n * f + (m - 1) * max(n * b + f, n * f + b) + n * b


@given(st.integers(1, 12))
def test_the_bubble_of_a_long_step_is_the_remembered_table_entry(n: int) -> None:
    """(D - 1) / (D + 1/2), for backwards that take twice as long as forwards."""
    short, long = (simulate(gems(n, m)).makespan for m in (50, 100))
    assert 1 - 50 * (1 + 2) / (long - short) == pytest.approx((n - 1) / (n + 0.5))


@given(*SIZES)
def test_it_takes_longer_than_1f1b_and_stashes_less(n: int, m: int) -> None:
    ours, theirs, gpipes = (simulate(make(n, m), Costs(stash=1)) for make in (gems, one_f_one_b, gpipe))
    assert ours.makespan >= theirs.makespan == gpipes.makespan
    assert ours.peak(0) <= theirs.peak(0) <= gpipes.peak(0)


def test_a_single_micro_batch_is_the_first_replicas_and_both_update() -> None:
    schedule = gems(4, 1)
    assert {op for op in schedule if op.kind == 'F'} == {Op('F', s, 0) for s in range(4)}
    for device, row in enumerate(schedule.rows):
        assert {op.stage for op in row if op.kind == 'U'} == {device, 3 - device}


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.sampled_from(CHECKPOINTS))
def test_it_trains_as_synchronous_sgd(n: int, chunks: int, more: int, checkpoint: str) -> None:
    model = layers(n)
    data = [*batches(2, chunks + more), *batches(1, 1)]   # the last one is one micro-batch
    losses, parameters = plainly(model, data)
    pipeline = Pipeline(model, [1] * n, schedule='gems', chunks=chunks, devices=['cpu'] * n, loss_fn=mse,
                        optimizer=sgd, checkpoint=checkpoint)
    found = [pipeline.step(x, y).item() for x, y in data]
    torch.testing.assert_close(found, losses)
    torch.testing.assert_close([*pipeline.parameters()], parameters)
    for first, *others in copies(pipeline).values():
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=0)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6))
def test_a_gradient_is_the_sum_of_both_replicas_to_the_bit(n: int, chunks: int) -> None:
    """Each adds up its micro-batches in order; then the replica on the lower device comes first."""
    model, [(x, y)] = layers(n), batches(1, chunks)
    xs, ys = x.tensor_split(chunks), y.tensor_split(chunks)
    sums = []
    for numbers in (range(0, chunks, 2), range(1, chunks, 2), range(chunks)):   # of a replica, or of both
        plain = copy.deepcopy(model)
        for i in numbers:
            (mse(plain(xs[i]), ys[i]) * (1 / chunks)).backward()
        sums.append([p.grad for p in plain.parameters()])
    expected = [(both if s == n - 1 - s else even + odd) for k, (even, odd, both) in enumerate(zip(*sums))
                for s in [k // 2]]
    pipeline = Pipeline(model, [1] * n, schedule='gems', chunks=chunks, devices=['cpu'] * n, loss_fn=mse)
    pipeline.step(x, y)
    torch.testing.assert_close([p.grad for p in pipeline.parameters()], expected, rtol=0, atol=0)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_it_draws_the_dropout_masks_that_other_schedules_draw(n: int, chunks: int, seed: int) -> None:
    results = []
    for schedule in ('gpipe', 'gems'):
        torch.manual_seed(seed)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Dropout()) for _ in range(n))).double()
        pipeline = Pipeline(model, [1] * n, schedule=schedule, chunks=chunks, devices=['cpu'] * n,
                            loss_fn=mse, optimizer=partial(sgd, lr=0.01))
        x = torch.ones(8, 3).double()
        results.append([pipeline.step(x, x) for _ in range(2)])
    torch.testing.assert_close(*results)
