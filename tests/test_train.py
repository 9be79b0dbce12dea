"""Pipeline.train: many mini-batches as one schedule give the weights that the papers' rules prescribe."""

import copy
import random
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu import Pipeline, launch
from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.device import one_thread
from fewgpu.schedule import (CHECKPOINTS, check, gpipe, interleaved, one_f_one_b, pipedream, two_bw,
                             with_recompute, with_updates, zero_bubble)
from fewgpu.schedule.long_runs import following
from fewgpu.simulate import Costs, simulate
from tests import delayed
from tests.networks import Case, cases, evenly, is_float, virtual
from tests.pipes import BACKWARD, Failing

FLUSHING = ('gpipe', '1f1b', 'interleaved', 'zb-h1', 'zb-h2')
OPTIMIZERS = {'sgd': partial(torch.optim.SGD, lr=0.05),
              'momentum': partial(torch.optim.SGD, lr=0.02, momentum=0.9),
              'adam': partial(torch.optim.Adam, lr=0.01)}
RULES = {'pipedream': (partial(pipedream), delayed.pipedream),
         'vertical': (partial(pipedream, vertical_sync=True), delayed.vertical),
         '2bw': ('2bw', None)}
mse = nn.functional.mse_loss


def loss_fn(outputs, y: torch.Tensor) -> torch.Tensor:
    """A mean over rows, of outputs of any kind, and a number a row to be met."""
    leaves = [leaf.flatten(1).mean(1) for leaf in pytree.tree_leaves(outputs)
              if is_float(leaf) and leaf.dim()]
    return mse(sum(leaves), y)


def mini_batches(case: Case, sizes: list[int]) -> list[tuple]:
    numbers = torch.Generator().manual_seed(case.seed)
    return [(Case(**{**vars(case), 'rows': rows}).inputs(step, torch.float64).detach(),
             torch.randn(rows, generator=numbers, dtype=torch.float64)) for step, rows in enumerate(sizes)]


def by_the_rule(case: Case, rule: str, chunks: int, data: list[tuple], make) -> delayed.Delayed:
    """Plain training with the versions that the paper says."""
    stages = len(case.balance)
    reference = delayed.Delayed(case.model(torch.float64), case.balance, make)
    k = 0
    with one_thread():
        for x, y in data:
            xs, ys = x.tensor_split(chunks), y.tensor_split(chunks)
            if rule == '2bw':
                versions = [delayed.two_bw(stages, k + i, chunks) for i in range(chunks)]
                reference.update(versions, [part.clone() for part in xs], ys, loss_fn)
            else:
                for i in range(chunks):
                    reference.update([RULES[rule][1](stages, k + i)], [xs[i].clone()], [ys[i]], loss_fn)
            k += chunks
    return reference


def equal(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other), (one - other).abs().max()


FIRST = [('rows', 'linear of rows'), ('sequence', 'attention'), ('sequence', 'lstm', 'output of lstm'),
         ('image', 'conv'), ('ids', 'embedding')]
chains = partial(cases, without=('draws', 'batch norm', 'counts', 'bounds'), frozen=(),
                 inputs_need_gradient=False)


@st.composite
def runs(draw: st.DrawFn, rules: tuple[str, ...]) -> tuple:
    """A chain of layers, a rule, chunks, and the sizes of mini-batches that differ."""
    start, *first = draw(st.sampled_from(FIRST))
    case = draw(chains(start=start, first=tuple(first), rows=8, chunks=1))
    rule = draw(st.sampled_from(rules))
    fewest = len(case.balance) if rule == '2bw' else 1
    chunks = draw(evenly(fewest, fewest + 2))
    return case, rule, chunks, draw(st.lists(evenly(chunks, chunks + 5), min_size=1, max_size=7))


@given(runs(tuple(RULES)), st.sampled_from(sorted(OPTIMIZERS)))
def test_without_a_drain_the_weights_are_those_of_the_published_rule(run: tuple, optimizer: str) -> None:
    case, rule, chunks, sizes = run
    model, data = case.model(torch.float64), mini_batches(case, sizes)
    make = OPTIMIZERS[optimizer]
    pipeline = Pipeline(model, case.balance, schedule=RULES[rule][0], chunks=chunks, loss_fn=loss_fn,
                        optimizer=make, devices=virtual(len(case.balance)))
    losses = pipeline.train(data)
    assert [loss.shape for loss in losses] == [()] * len(sizes)
    reference = by_the_rule(case, rule, chunks, data, make)
    equal(pipeline.parameters(), reference.parameters())


@st.composite
def flushing(draw: st.DrawFn) -> dict:
    devices = draw(evenly(1, 4))
    schedule = draw(st.sampled_from(FLUSHING))
    stages = 2 * devices if schedule == 'interleaved' else devices
    return {'schedule': schedule, 'balance': [1] * stages, 'devices': virtual(devices),
            'chunks': devices * draw(evenly(1, 2)), 'checkpoint': draw(st.sampled_from(CHECKPOINTS))}


@settings(max_examples=15)
@given(flushing(), st.lists(evenly(0, 5), min_size=1, max_size=5), st.sampled_from(sorted(OPTIMIZERS)))
def test_a_schedule_that_flushes_gives_what_step_by_step_gives(cut: dict, more: list[int], optimizer: str
                                                               ) -> None:
    """Also where a mini-batch has fewer rows than chunks, and with buffers that every forward changes."""
    fewest = cut['chunks'] if cut['schedule'] == 'interleaved' else 2
    data = [tuple(torch.randn(2, fewest + rows, 3, dtype=torch.float64)) for rows in more]
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in cut['balance'])).double()
    pipelines = [Pipeline(copy.deepcopy(model), **cut, loss_fn=mse, optimizer=OPTIMIZERS[optimizer])
                 for _ in range(2)]
    equal(pipelines[0].train(data), [pipelines[1].step(x, y) for x, y in data])
    equal(pipelines[0].state_dict().values(), pipelines[1].state_dict().values())


def test_batch_norm_with_recompute_counts_every_forward_of_a_long_run_once() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2))).double()
    data = [tuple(torch.randn(2, 8, 3, dtype=torch.float64)) for _ in range(4)]
    pipelines = [Pipeline(copy.deepcopy(model), [1, 1], chunks=4, devices=virtual(2), checkpoint='always',
                          loss_fn=mse, optimizer=OPTIMIZERS['sgd']) for _ in range(2)]
    equal(pipelines[0].train(data), [pipelines[1].step(x, y) for x, y in data])
    equal(pipelines[0].state_dict().values(), pipelines[1].state_dict().values())


@given(evenly(1, 5), evenly(1, 5), evenly(1, 4), evenly(1, 3), evenly(1, 3))
def test_a_flush_after_every_mini_batch_costs_its_bubble_each_time(n: int, m: int, k: int, f: int, b: int
                                                                   ) -> None:
    """k mini-batches of m micro-batches: k (m + n - 1)(f + b) with a flush, (k m + n - 1)(f + b) without."""
    costs = Costs(F=f, B=b)
    for make in (gpipe, one_f_one_b):
        run = following([with_updates(make(n, m))] * k)
        check(run)
        assert simulate(run, costs).makespan == k * (m + n - 1) * (f + b)
    every = m + n - 1
    for run in (pipedream(n, k * m), two_bw(n, k * every, update_every=every)):
        assert simulate(run, costs).makespan == (run.micro_batches + n - 1) * (f + b)


@given(evenly(1, 3), evenly(1, 3), evenly(1, 3), st.sampled_from(CHECKPOINTS))
def test_flushing_schedules_in_a_row_keep_the_laws(n: int, rounds: int, k: int, checkpoint: str) -> None:
    for one in (zero_bubble(n, n * rounds), interleaved(n, n * rounds, v=2)):
        check(following([with_updates(with_recompute(one, checkpoint))] * k))


@pytest.mark.parametrize('schedule, message', [
    ('2bw', '2bw updates after every 4 micro-batches, and mini-batch 1 has 3'),
    (partial(two_bw, update_every=4), 'mini-batch 1 has 3'),
    ('pipemare', 'pipemare updates after every 4 micro-batches, and mini-batch 1 has 3')])
def test_mini_batches_that_would_share_an_update_are_refused(schedule, message: str) -> None:
    pipeline = Pipeline(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), [1, 1], schedule=schedule, chunks=4,
                        loss_fn=mse, optimizer=OPTIMIZERS['sgd'], devices=virtual(2))
    with pytest.raises(ValueError, match=message):
        pipeline.train([(torch.randn(rows, 3), torch.randn(rows, 3)) for rows in (4, 3)])


def test_deferred_batch_norm_refuses_mini_batches_that_it_could_not_tell_apart() -> None:
    def made() -> Pipeline:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).double()
        model = DeferredBatchNorm.convert_deferred_batch_norm(model, 4)
        return Pipeline(model, [2, 1], chunks=4, loss_fn=mse, optimizer=OPTIMIZERS['sgd'], devices=virtual(2))

    data = [tuple(torch.randn(2, rows, 3, dtype=torch.float64)) for rows in (8, 12, 9)]
    whole, steps = made(), made()
    whole.train(data)
    for x, y in data:
        steps.step(x, y)
    equal(whole.state_dict().values(), steps.state_dict().values())
    with pytest.raises(ValueError, match='deferred batch norm counts .* these have 2 to 4'):
        whole.train([data[0], (data[1][0][:2], data[1][1][:2])])


def test_bad_input_is_refused_and_leaves_the_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = copy.deepcopy(model.state_dict())
    pipeline = Pipeline(model, [1, 1], chunks=2, loss_fn=mse, optimizer=OPTIMIZERS['sgd'], devices=virtual(2))
    good = torch.randn(4, 3), torch.randn(4, 3)
    for batches, error, message in (([], ValueError, 'nothing to train on'), (7, TypeError, r'pairs \(x, y\), not 7'),
                                    ([torch.randn(4, 3)], TypeError, 'a pair'),
                                    ([good, (None, good[1])], TypeError, 'first stage needs the inputs'),
                                    ([good, (good[0], None)], TypeError, 'last stage needs the targets'),
                                    ([good, (good[0], good[1][:3])], ValueError, '3 rows of targets for 4')):
        with pytest.raises(error, match=message):
            pipeline.train(batches)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize('schedule', ['interleaved', '2bw'])
def test_a_mini_batch_with_fewer_rows_than_chunks_is_refused_for_its_rows(schedule: str) -> None:
    stages = 4 if schedule == 'interleaved' else 2
    pipeline = Pipeline(nn.Sequential(*(nn.Linear(3, 3) for _ in range(stages))), [1] * stages, chunks=4, loss_fn=mse,
                        schedule=schedule, optimizer=OPTIMIZERS['sgd'], devices=virtual(2))
    few = torch.randn(3, 3), torch.randn(3, 3)
    with pytest.raises(ValueError, match='mini-batch of 3 rows cannot be cut into 4 chunks.*at least 4 rows'):
        pipeline.step(*few)
    with pytest.raises(ValueError, match='at least (4|as many) rows'):
        pipeline.train([few])


def test_a_long_run_that_fails_says_how_often_which_weights_were_updated() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Failing()).double()
    pipeline = Pipeline(model, [1, 1], loss_fn=mse, chunks=2, optimizer=OPTIMIZERS['sgd'], devices=virtual(2))
    model[1].fail(BACKWARD, 2 * 3 + 1, ZeroDivisionError('here'))   # mini-batch 3, its second micro-batch
    with pytest.raises(ZeroDivisionError) as caught:
        pipeline.train([tuple(torch.randn(2, 4, 3, dtype=torch.float64)) for _ in range(9)])
    notes = '\n'.join(caught.value.__notes__)
    assert 'backward of micro-batch 7' in notes and 'stages 0, 1 have been updated (3, 3 times)' in notes


# Each of these runs on every rank, for one seed.

def follows_the_rule_on_ranks(seed: int) -> None:
    draw, rank, ranks = random.Random(seed), dist.get_rank(), dist.get_world_size()
    rule, make = draw.choice([*RULES, '1f1b', 'pipemare']), OPTIMIZERS[draw.choice(sorted(OPTIMIZERS))]
    chunks = ranks + draw.randrange(2) if rule == '2bw' else draw.randint(1, 3)
    case = Case('rows', ('linear of rows', 'tanh of rows', 'layer norm of rows', 'linear of rows'),
                (2, 2) if ranks == 2 else (1, 2, 1), 8, 1, seed=seed, inputs_need_gradient=False)
    data = mini_batches(case, [chunks + draw.randrange(4) for _ in range(draw.randint(1, 6))])
    given = [(x if rank == 0 else None, y if rank == ranks - 1 else None) for x, y in data]
    options = {'schedule': RULES[rule][0] if rule in RULES else rule, 'loss_fn': loss_fn, 'optimizer': make,
               'chunks': chunks}
    pipeline = Pipeline(case.model(torch.float64), case.balance, **options)
    losses = pipeline.train(given)
    if rule not in RULES:
        alone = Pipeline(case.model(torch.float64), case.balance, devices=virtual(ranks), **options)
        equal(losses, [alone.step(x, y) for x, y in data] if rule == '1f1b' else alone.train(data))
        wanted = [*alone.parameters()]
    else:
        wanted = by_the_rule(case, rule, chunks, data, make).parameters()
    layers = [len([*layer.parameters()]) for layer in case.model()]
    first = sum(case.balance[:rank])
    skipped, own = sum(layers[:first]), sum(layers[first:first + case.balance[rank]])
    equal(pipeline.parameters(), wanted[skipped:skipped + own])
    pipeline.close()


def all_on_ranks(seeds: list[int]) -> None:
    torch.set_num_threads(1)
    for seed in seeds:
        follows_the_rule_on_ranks(seed)
    with pytest.raises((ValueError, RuntimeError), match='mini-batches, the rank of the first stage 2'):
        short = Pipeline(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)),
                         [2, 1] if dist.get_world_size() == 2 else [1, 1, 1], loss_fn=mse)   # one may be ahead
        short.train([(torch.randn(4, 3), torch.randn(4, 3))] * (2 + (dist.get_rank() > 0)))
        short.ranks.tell(1, None)   # the first rank hears of it at its next wait


@pytest.mark.slow
@pytest.mark.parametrize('ranks', [2, 3])
def test_ranks_train_without_a_drain_by_the_same_rules(ranks: int) -> None:
    launch(all_on_ranks, ranks, args=([random.randrange(10**6) for _ in range(12)],))
