"""A stage may live on several devices: placement, shared updates, PipeDream with replicas."""

import copy
from dataclasses import replace
from functools import partial
from math import ceil, inf, lcm

import pytest
import torch
import torch.distributed as dist
from hypothesis import event, given, settings, strategies as st
from torch import nn

from fewgpu import Pipeline, launch
from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.schedule import (CHECKPOINTS, SHARE, Op, Schedule, ScheduleError, check, gems, gpipe, grid,
                             pipedream, staleness, stashes, versions, versions_alive, with_messages,
                             with_recompute, with_updates)
from fewgpu.schedule.waits import SENDS, verify_no_deadlock
from fewgpu.simulate import Costs, simulate
from fewgpu.transport.ranks import Ranks
from tests import delayed
from tests.schedules import dressed, is_right
from tests.test_schedule_checks import mutate, refusal

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=4)
PUBLISHED = [(7, 1), (2, 1, 1), (9, 5, 1, 1), (15, 1)]   # arXiv 1806.03377, table 1; SOSP'19, table 1
mse = nn.functional.mse_loss
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@st.composite
def replicated(draw, counts: st.SearchStrategy = COUNTS, most: int = 3) -> Schedule:
    """PipeDream with random replicas, for a few rounds."""
    replicas = draw(counts)
    return pipedream(len(replicas), lcm(*replicas) * draw(st.integers(1, most)), replicas=replicas)


def replicas_of(schedule: Schedule) -> list[int]:
    return [len(devices) for devices in schedule.devices_of.values()]


# Placement


@given(replicated())
def test_replicas_take_the_mini_batches_in_turn_forward_and_backward(schedule: Schedule) -> None:
    first = 0
    for s, r in enumerate(replicas_of(schedule)):
        assert schedule.devices_of[s] == tuple(range(first, first + r))
        for k in range(r):
            for kind in 'FB':
                assert [op.micro_batch for op in schedule.rows[first + k] if op.kind == kind] == list(
                    range(k, schedule.micro_batches, r))
        first += r
    assert len(schedule.rows) == first


@settings(max_examples=60)
@given(dressed(replicated()))
def test_any_numbers_of_replicas_make_a_right_schedule(schedule: Schedule) -> None:
    check(schedule)
    assert is_right(schedule.select(lambda op: op.message is None)), grid(schedule)


@pytest.mark.parametrize('counts', PUBLISHED)
def test_the_published_configurations_come_to_their_end_and_admit_noam_mini_batches(counts) -> None:
    schedule = pipedream(len(counts), 2 * lcm(*counts), replicas=counts)
    check(schedule)
    for sends in SENDS[:2]:
        verify_no_deadlock(with_messages(schedule), sends=sends)
    for row in schedule.rows[:counts[0]]:
        noam = ceil(sum(counts) / counts[0])
        assert ''.join(op.kind for op in row).index('B') == min(noam, sum(op.kind == 'F' for op in row))
    assert simulate(schedule, Costs(latency=1.0, message=1, share=5, bandwidth=1.0)).makespan > 0


@settings(max_examples=200)
@given(dressed(st.one_of(replicated(st.lists(st.integers(1, 3), min_size=1, max_size=2), most=2),
                         st.builds(gems, st.integers(1, 3), st.integers(1, 4))), messages=False), st.data())
def test_a_mutation_is_refused_exactly_when_it_is_wrong(schedule: Schedule, data) -> None:
    mutant = mutate(data, schedule)
    right, why = is_right(mutant), refusal(mutant)
    event('right' if right else 'wrong')
    assert right == (why is None), f'{why or "not refused"}\n{grid(mutant)}'
    assert (why is None) == (refusal(with_messages(mutant)) is None), grid(mutant)


@given(replicated())
def test_before_an_update_each_replica_hears_from_every_other(schedule: Schedule) -> None:
    whole = with_messages(schedule)
    sent = [op.message for op in whole if op.kind == 'send' and op.message.what == SHARE]
    assert len({*sent}) == len(sent)
    assert {*sent} == {op.message for op in whole if op.kind == 'recv' and op.message.what == SHARE}
    for device, row in enumerate(whole.rows):
        others = {*schedule.devices_of[row[0].stage]} - {device}
        for at, op in enumerate(row):
            if op.kind == 'U':
                before = row[at - 2 * len(others):at]
                assert {o.message.receiver for o in before if o.kind == 'send'} == others
                assert {o.message.sender for o in before if o.kind == 'recv'} == others
                assert {o.micro_batch for o in before} <= {op.micro_batch}


@given(st.integers(2, 5), st.integers(2, 6))
def test_updates_that_are_left_to_the_pass_do_not_wait_for_each_other(n: int, m: int) -> None:
    """Two devices that hold the same two stages update them in the same order."""
    bare = gems(n, m).select(lambda op: op.kind != 'U')
    check(with_messages(with_updates(bare)))


def test_updates_in_different_orders_wait_for_each_other_and_say_so() -> None:
    rows = [list(row) for row in gems(2, 2).rows]
    rows[1][-2:] = reversed(rows[1][-2:])
    with pytest.raises(ScheduleError, match='waits for G from stage . on device .'):
        check(replace(gems(2, 2), rows=tuple(map(tuple, rows))))


# Weight versions


@given(replicated())
def test_all_replicas_see_the_same_updates_late_by_the_rounds_behind(schedule: Schedule) -> None:
    counts, used = replicas_of(schedule), versions(schedule)
    for i in range(schedule.micro_batches):
        expected = delayed.replicated(counts, i)
        for s, r in enumerate(counts):
            assert used[Op('F', s, i)] == used[Op('B', s, i)] == expected[s]
            assert staleness(schedule)[s, i] == i // r - expected[s]


@given(COUNTS, st.integers(2, 4))
def test_a_stage_keeps_as_many_versions_and_stashes_as_mini_batches_are_on_their_way(counts, more) -> None:
    noam = [ceil(sum(counts[s:]) / r) for s, r in enumerate(counts)]
    schedule = pipedream(len(counts), lcm(*counts) * more * max(noam), replicas=counts)
    assert stashes(schedule) == noam
    assert versions_alive(schedule) == noam


@pytest.mark.parametrize('counts, micro_batches, why', [
    ((2, 1, 1), 4, 'for each of the 2 stages'), ((0, 1), 4, 'at least 1'), ((2, 3), 9, 'take 12')])
def test_replicas_that_cannot_be_are_refused(counts, micro_batches, why) -> None:
    with pytest.raises(ValueError, match=why):
        pipedream(2, micro_batches, replicas=counts)


# In virtual time


SECONDS = st.floats(0.0, 10.0)


@given(st.one_of(replicated(), st.builds(gems, st.integers(1, 5), st.integers(1, 6))),
       SECONDS, SECONDS, SECONDS, SECONDS, st.integers(0, 9), st.sampled_from([inf, 1.0, 10.0]))
def test_an_update_waits_for_all_replicas(schedule, f, b, u, latency, size, bandwidth) -> None:
    costs = Costs(F=f, B=b, U=u, latency=latency, share=size, bandwidth=bandwidth)
    timeline, whole = simulate(schedule, costs), simulate(with_messages(schedule), costs)
    for row, shown in zip(timeline.rows, whole.rows):   # messages are shown, and change nothing
        assert list(row) == [span for span in shown if span.op.message is None]
    ends: dict[tuple, dict[int, float]] = {}   # of what comes before an update, on every device
    for device, row in enumerate(timeline.rows):
        for before, span in zip(row, row[1:]):
            if span.op.kind == 'U':
                ends.setdefault(span.op, {})[device] = before.end
    for device, row in enumerate(timeline.rows):
        for span in row:
            if span.op.kind == 'U':
                ready = [end + (latency + size / bandwidth) * (other != device)
                         for other, end in ends[span.op].items()]
                assert span.start >= max(ready) * (1 - 1e-9)
                assert len(ready) > 1 or span.start == max(ready)


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20))
def test_a_first_stage_with_enough_replicas_keeps_the_second_busy(r: int, f: int, b: int) -> None:
    """7-1, 15-1: r replicas of a stage that takes r times as long; then a mini-batch ends every f + b."""
    costs = Costs(F=[r * f, f], B=[r * b, b])
    fewer, more = (simulate(pipedream(2, rounds * r, replicas=(r, 1)), costs).makespan for rounds in (4, 9))
    assert more - fewer == 5 * r * (f + b)


# Training on threads


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
