"""Stages on several devices train as the plain rule says, on threads and on ranks, and stay alike."""

import copy
from functools import partial
from math import lcm

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import Pipeline, launch
from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.schedule import CHECKPOINTS, gems, pipedream
from fewgpu.transport.ranks import Ranks
from tests import delayed

mse = nn.functional.mse_loss
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def layers(count: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(count))).double()


def batches(steps: int, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [tuple(torch.randn(2, rows, 3, dtype=torch.float64)) for _ in range(steps)]


def expected(model: nn.Module, counts, chunks: int, data) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and parameters by the published rule; the pipeline drains after every step."""
    reference, losses = delayed.Delayed(model, [1] * len(counts), sgd), []
    for step, (x, y) in enumerate(data):
        done = [step * chunks // r for r in counts]
        parts = list(zip(x.tensor_split(chunks), y.tensor_split(chunks)))
        each = [reference.mini_batch(i, [before + version for before, version in zip(
            done, delayed.replicated(counts, i))], *part, mse, counts) * len(part[1])
            for i, part in enumerate(parts)]
        losses.append(sum(each) / len(y))
    return losses, reference.parameters()


def copies(pipeline: Pipeline) -> dict[int, list[list[torch.Tensor]]]:
    """The parameters of all replicas here, by stage."""
    found: dict[int, list[list[torch.Tensor]]] = {}
    for (_, s), partition in pipeline._held.partitions.items():
        found.setdefault(s, []).append([p.detach() for p in partition.parameters()])
    return found


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 2), st.integers(0, 3),
       st.sampled_from(CHECKPOINTS))
def test_replicas_train_by_the_mean_of_a_round_and_stay_alike_to_the_bit(counts, rounds, more, checkpoint
                                                                         ) -> None:
    model, chunks = layers(len(counts)), lcm(*counts) * rounds
    data = batches(2, chunks + more)
    losses, parameters = expected(model, counts, chunks, data)
    keys = model.state_dict().keys()
    pipeline = Pipeline(model, [1] * len(counts), schedule=partial(pipedream, replicas=counts), chunks=chunks,
                        devices=['cpu'] * sum(counts), loss_fn=mse, optimizer=sgd, checkpoint=checkpoint)
    found = [pipeline.step(x, y).item() for x, y in data]
    torch.testing.assert_close(found, losses)
    torch.testing.assert_close([*pipeline.parameters()], parameters, rtol=0, atol=0)
    assert [len(each) for each in copies(pipeline).values()] == list(counts)
    for first, *others in copies(pipeline).values():
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=0)
    assert pipeline.state_dict().keys() == keys and len(pipeline.optimizers) == sum(counts)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(1, 11), min_size=1, max_size=3), st.integers(0, 99))
def test_all_rows_of_a_round_count_alike_whichever_mini_batches_they_are_of(r, sizes, seed) -> None:
    """On r replicas of one stage a round is a step of the plain model by the mean loss of all its rows."""
    sizes += [left] if (left := -sum(min(r, rows) for rows in sizes) % r) else []   # so that the last round is full
    model, every = layers(1, seed), [batches(1, rows)[0] for rows in sizes]
    plain = copy.deepcopy(model)
    pipeline = Pipeline(model, [1], schedule=partial(pipedream, replicas=(r,)), chunks=r, loss_fn=mse,
                        devices=['cpu'] * r, optimizer=sgd)
    pipeline.train(every)
    optimizer = sgd(plain.parameters())
    parts = [part for x, y in every for part in zip(*(each.tensor_split(min(r, len(x))) for each in (x, y)))]
    for first in range(0, len(parts), r):
        x, y = (torch.cat(several) for several in zip(*parts[first:first + r]))
        optimizer.zero_grad()
        mse(plain(x), y).backward()
        optimizer.step()
    torch.testing.assert_close([*pipeline.parameters()], [*plain.parameters()], rtol=1e-12, atol=1e-13)


def two_replicas(model: nn.Sequential, **options) -> Pipeline:
    return Pipeline(model, [1, 1], schedule=partial(pipedream, replicas=(2, 1)), chunks=4, loss_fn=mse,
                    devices=['cpu'] * 3, **{'optimizer': sgd, **options})


def test_weights_and_modes_that_change_between_steps_reach_all_replicas() -> None:
    pipeline, other = two_replicas(layers(2)), layers(2, seed=5)
    [(x, y), again] = batches(2, 4)
    pipeline.step(x, y)
    pipeline.load_state_dict(other.state_dict())
    torch.testing.assert_close(pipeline.eval_step(x, y), mse(other(x), y).detach())
    pipeline.module[0][0].requires_grad_(False)
    before = copy.deepcopy(pipeline.module[0][0].state_dict())
    pipeline.step(*again)
    first, second = copies(pipeline)[0]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(pipeline.module[0][0].state_dict(), before, rtol=0, atol=0)


def test_buffers_stay_each_replicas_own() -> None:
    norm = DeferredBatchNorm(3).double()
    model = nn.Sequential(nn.Sequential(norm), nn.Linear(3, 3).double())
    pipeline = two_replicas(model, optimizer=partial(torch.optim.SGD, lr=0.0))
    [(x, y)] = batches(1, 8)
    pipeline.step(x, y)
    for row in (0, 1):
        whole = DeferredBatchNorm(3).double()
        parts = x.tensor_split(4)
        whole(torch.cat([parts[row], parts[row + 2]]))   # its own mini-batches, counted as one
        torch.testing.assert_close(dict(pipeline._held.partitions[row, 0].named_buffers()),
                                   {f'0.0.{name}': value for name, value in whole.named_buffers()})


def test_buffers_that_somebody_changes_reach_all_replicas_and_no_others_do() -> None:
    pipeline = two_replicas(nn.Sequential(nn.Sequential(nn.BatchNorm1d(3).double()), nn.Linear(3, 3).double()),
                            optimizer=partial(torch.optim.SGD, lr=0.0))
    first, second = (pipeline._held.partitions[row, 0][0][0] for row in (0, 1))
    [(x, y)] = batches(1, 8)
    pipeline.step(x, y)
    assert not torch.equal(first.running_mean, second.running_mean)
    own = second.running_var.clone()
    with torch.no_grad():
        pipeline.module[0][0].running_mean.fill_(7.0)
    pipeline.eval_step(x, y)
    assert bool((second.running_mean == 7.0).all()) and torch.equal(second.running_var, own)
    pipeline.module[0][0].running_var = torch.full((3,), 2.0, dtype=torch.float64)
    pipeline.eval_step(x, y)
    assert bool((second.running_var == 2.0).all())


def test_hooks_on_the_parameters_of_replicas_are_refused() -> None:
    pipeline = two_replicas(layers(2))
    next(pipeline.parameters()).register_hook(lambda gradient: gradient)
    with pytest.raises(ValueError, match='take the hooks away'):
        pipeline.step(*batches(1, 4)[0])


def test_an_error_of_one_replica_stops_all() -> None:
    class Fussy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x > 5).any():
                raise ArithmeticError('too large')
            return x * 1.0

    x, y = batches(1, 4)[0]
    x[1] = 9.0   # of the second replica
    with pytest.raises(ArithmeticError, match='too large') as caught:
        two_replicas(nn.Sequential(Fussy(), nn.Linear(3, 3).double())).step(x, y)
    assert any('forward of micro-batch 1' in note for note in caught.value.__notes__)


# On ranks


CASES = [('pipedream', (2, 1)), ('pipedream', (1, 2)), ('pipedream', (3, 1)), ('pipedream', (2, 1, 1)),
         ('pipedream', (2, 2)), ('gems', 2), ('gems', 3), ('gems', 4)]


def on_ranks() -> list:
    """Every case on as many ranks as it needs; the ranks begin with different weights."""
    me, found = dist.get_rank(), []
    for name, what in CASES:
        size = sum(what) if name == 'pipedream' else what
        if me >= size:
            found.append(None)
            continue
        stages = len(what) if name == 'pipedream' else what
        schedule = partial(pipedream, replicas=what) if name == 'pipedream' else gems
        ranks = Ranks(range(size))
        pipeline = Pipeline(layers(stages, seed=me), [1] * stages, schedule=schedule, chunks=6, loss_fn=mse,
                            optimizer=sgd, ranks=ranks, checkpoint='always')
        losses = [pipeline.step(x, y).item() for x, y in batches(2, 12)]
        if name == 'gems':   # one micro-batch: the second replica has nothing to do, and follows
            losses.append(pipeline.step(*batches(1, 1)[0]).item())
        x, y = batches(1, 12)[0]
        tested, output = pipeline.eval_step(x, y).item(), pipeline.eval_step(x)
        found.append((losses, {s: [p.detach() for p in part.parameters()]
                               for (_, s), part in pipeline._held.partitions.items()}, tested, output))
        pipeline.close()
    return found


@pytest.mark.slow
def test_ranks_train_as_the_plain_rule_does_and_replicas_stay_alike() -> None:
    of_ranks = launch(on_ranks, 4, time_limit=300)
    for case, (name, what) in enumerate(CASES):
        ranks = [found[case] for found in of_ranks if found[case]]
        schedule = pipedream(len(what), 6 * 2, replicas=what) if name == 'pipedream' else gems(what, 6)
        assert len(ranks) == len(schedule.rows)
        model = nn.Sequential(*(layers(schedule.stages, seed=devices[0])[s]   # the first replica's weights
                                for s, devices in schedule.devices_of.items()))
        data = batches(2, 12)
        if name == 'pipedream':
            losses, parameters = expected(model, what, 6, data)
        else:
            data.append(batches(1, 1)[0])
            losses, parameters = plainly(model, data)
        for losses_here, held, tested, output in ranks:
            torch.testing.assert_close(losses_here, losses)
            exact = {'rtol': 0, 'atol': 0} if name == 'pipedream' else {}   # GEMS adds up in another order
            for s, values in held.items():
                torch.testing.assert_close(values, [p.detach() for p in parameters[2 * s:2 * s + 2]], **exact)
        trained = copy.deepcopy(model)
        for own, value in zip(trained.parameters(), parameters):
            own.data = value.detach()
        for row, (_, held, tested, output) in enumerate(ranks):
            x, y = batches(1, 12)[0]
            assert tested == pytest.approx(mse(trained(x), y).item())
            assert (output is None) == (row not in schedule.devices_of[schedule.stages - 1])
            if output is not None:
                torch.testing.assert_close(output, trained(x).detach())
        for s, devices in schedule.devices_of.items():
            for device in devices[1:]:
                torch.testing.assert_close(ranks[device][1][s], ranks[devices[0]][1][s], rtol=0, atol=0)


def plainly(model: nn.Module, data) -> tuple[list[float], list[torch.Tensor]]:
    """Synchronous SGD of the plain model."""
    plain, losses = copy.deepcopy(model), []
    optimizer = sgd(plain.parameters())
    for x, y in data:
        loss = mse(plain(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [*plain.parameters()]


def test_a_sum_is_refused_where_replicas_take_the_mean_of_a_round() -> None:
    with pytest.raises(ValueError, match='give a loss that is a mean'):
        Pipeline(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [1, 1], schedule=partial(pipedream, replicas=(2, 1)),
                 chunks=4, devices=['cpu'] * 3, loss_fn=partial(mse, reduction='sum'),
                 optimizer=partial(torch.optim.SGD, lr=0.1))
