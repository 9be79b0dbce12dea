"""Pipeline.step trains as the plain model does, whatever the schedule."""

import copy
import re
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import Pipeline
from fewgpu.schedule import (CHECKPOINTS, SCHEDULES, Schedule, ScheduleError, gpipe, with_messages,
                             with_updates)
from fewgpu.schedule.named import schedule_maker
from fewgpu.schedule.pipedream import pipedream
from tests import delayed
from tests.networks import evenly

FLUSHING = ('gpipe', '1f1b', 'interleaved', 'zb-h1', 'zb-h2', 'v-shape')
mse = nn.functional.mse_loss
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def layers(count: int) -> nn.Sequential:
    """As many layers, with weights or without, of width 3; float64."""
    kinds = (lambda: nn.Linear(3, 3), nn.Tanh, lambda: nn.LayerNorm(3))
    return nn.Sequential(*(kinds[k % 3]() for k in range(count))).double()


def batches(steps: int, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [tuple(torch.randn(2, rows, 3, dtype=torch.float64)) for _ in range(steps)]


@st.composite
def cuts(draw: st.DrawFn, schedules: tuple[str, ...]) -> dict:
    """A schedule with sizes that it can have."""
    schedule = draw(st.sampled_from(schedules))
    devices = draw(evenly(1, 4))
    stages = devices * (draw(evenly(1, 3)) if schedule == 'interleaved' else 1 + (schedule == 'v-shape'))
    chunks = devices * draw(evenly(1, 3)) if schedule in ('interleaved', '2bw') else draw(evenly(1, 7))
    return {'schedule': schedule, 'balance': draw(st.lists(evenly(1, 2), min_size=stages,
                                                           max_size=stages)),
            'devices': ['cpu'] * devices, 'chunks': chunks,
            'checkpoint': draw(st.sampled_from(CHECKPOINTS))}


def plain_steps(model: nn.Sequential, data: list, optimizer) -> list[torch.Tensor]:
    losses = []
    for x, y in data:
        losses.append(mse(model(x), y))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


@given(cuts(FLUSHING), st.data())
def test_a_schedule_that_flushes_trains_as_the_plain_model_does(cut: dict, data) -> None:
    model = layers(sum(cut['balance']))
    plain = copy.deepcopy(model)
    given = batches(3, data.draw(evenly(cut['chunks'], 12 + cut['chunks'])))
    pipeline = Pipeline(model, **cut, loss_fn=mse, optimizer=sgd)
    losses = [pipeline.step(x, y) for x, y in given]
    trains = [*plain.parameters()]
    expected = plain_steps(plain, given, sgd(trains) if trains else torch.optim.SGD(
        [torch.zeros(1, requires_grad=True)]))
    torch.testing.assert_close(losses, [loss.detach() for loss in expected])
    torch.testing.assert_close(pipeline.state_dict(), plain.state_dict())


@given(cuts(('pipedream', '2bw')), st.integers(0, 6))
def test_an_asynchronous_schedule_follows_its_rule_of_delayed_weights(cut: dict, more: int) -> None:
    stages = len(cut['balance'])
    model = layers(sum(cut['balance']) + 1)
    cut['balance'][0] += 1
    reference = delayed.Delayed(model, cut['balance'], sgd)
    pipeline = Pipeline(model, **cut, loss_fn=mse, optimizer=sgd)
    every = stages if cut['schedule'] == '2bw' else 1
    rows = cut['chunks'] + more
    for first, (x, y) in enumerate(batches(2, rows)):
        xs, ys = x.tensor_split(cut['chunks']), y.tensor_split(cut['chunks'])
        rule = (partial(delayed.two_bw, stages, update_every=every) if every > 1
                or cut['schedule'] == '2bw' else partial(delayed.pipedream, stages))
        done = first * cut['chunks'] // every   # the pipeline drains between two steps
        losses = []
        for start in range(0, cut['chunks'], every):
            group = range(start, start + every)
            versions = [[done + version for version in rule(i)] for i in group]
            losses += reference.update(versions, [xs[i] for i in group], [ys[i] for i in group], mse)
        expected = sum(loss * len(part) for loss, part in zip(losses, ys)) / rows
        torch.testing.assert_close(pipeline.step(x, y).item(), expected)
    torch.testing.assert_close([*pipeline.parameters()], reference.parameters())


@given(cuts(FLUSHING), st.integers(0, 5))
def test_without_an_optimizer_gradients_add_up_as_after_a_backward(cut: dict, more: int) -> None:
    model = layers(sum(cut['balance']) + 1)
    cut['balance'][-1] += 1
    plain = copy.deepcopy(model)
    pipeline = Pipeline(model, **cut, loss_fn=mse)
    for x, y in batches(2, cut['chunks'] + more):
        pipeline.step(x, y)
        mse(plain(x), y).backward()
    torch.testing.assert_close([p.grad for p in pipeline.parameters()],
                               [p.grad for p in plain.parameters()])


@settings(max_examples=10)
@given(cuts(FLUSHING), st.integers(0, 99))
def test_every_schedule_draws_the_same_dropout_masks(cut: dict, seed: int) -> None:
    """They are keyed by stage and micro-batch, not by the order in which stages run."""
    results = []
    for schedule, checkpoint in (('gpipe', 'never'), (cut['schedule'], cut['checkpoint'])):
        torch.manual_seed(seed)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Dropout())
                                for _ in cut['balance'])).double()
        options = {**cut, 'schedule': schedule, 'checkpoint': checkpoint,
                   'balance': [1] * len(cut['balance'])}
        if schedule == 'gpipe':
            options['devices'] = ['cpu'] * len(cut['balance'])
        pipeline = Pipeline(model, **options, loss_fn=mse, optimizer=sgd)
        results.append([pipeline.step(x, y) for x, y in batches(2, cut['chunks'] + 1)])
    torch.testing.assert_close(*results)


@given(cuts(tuple(SCHEDULES)), st.integers(0, 5))
def test_an_evaluation_trains_nothing_and_comes_at_any_time(cut: dict, more: int) -> None:
    model = layers(sum(cut['balance']))
    pipeline = Pipeline(model, **cut, loss_fn=mse, optimizer=sgd)
    for x, y in batches(2, cut['chunks'] + more):
        before = copy.deepcopy(pipeline.state_dict())
        torch.testing.assert_close(pipeline.eval_step(x, y), mse(model.eval()(x), y).detach())
        torch.testing.assert_close(pipeline.eval_step(x), model(x).detach())
        torch.testing.assert_close(pipeline.state_dict(), before, rtol=0, atol=0)
        model.train()
        assert torch.isfinite(pipeline.step(x, y))


@given(cuts(tuple(SCHEDULES)))
def test_the_trace_is_a_linearisation_of_the_schedule(cut: dict) -> None:
    """Each device did the operations of its row in their order, one at a time, and nobody used a
    value before it was sent."""
    pipeline = Pipeline(layers(sum(cut['balance'])), **cut, loss_fn=mse, optimizer=sgd)
    [(x, y)] = batches(1, cut['chunks'])
    pipeline.step(x, y)
    rows = pipeline.trace.rows
    assert len(rows) == len(cut['devices'])
    sent = {span.op.message: span.start for row in rows for span in row if span.op.kind == 'send'}
    for row in rows:
        for before, after in zip(row, row[1:]):
            assert before.start <= before.end <= after.start <= after.end
        for span in row:
            if span.op.kind == 'recv' and span.op.message in sent:
                assert sent[span.op.message] <= span.end
    make = schedule_maker(cut['schedule'], len(cut['balance']), len(cut['devices']))
    done = [tuple(span.op for span in row if span.op.kind in 'FBIWU') for row in rows]
    assert done == [*with_updates(make(cut['chunks'])).rows]


def test_losses_of_unequal_micro_batches_are_weighted_by_their_rows() -> None:
    model = layers(2)
    [(x, y)] = batches(1, 5)
    pipeline = Pipeline(model, [1, 1], devices=['cpu'] * 2, chunks=4, loss_fn=mse)
    torch.testing.assert_close(pipeline.step(x, y), mse(model(x), y).detach())


@pytest.mark.parametrize('loss_fn', [nn.MSELoss(reduction='sum'), partial(mse, reduction='sum')])
def test_a_loss_that_is_a_sum_is_added_up(loss_fn) -> None:
    model = layers(2)
    [(x, y)] = batches(1, 5)
    pipeline = Pipeline(model, [1, 1], devices=['cpu'] * 2, chunks=4, loss_fn=loss_fn)
    loss = pipeline.step(x, y)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, mse(model(x), y, reduction='sum').detach())


@pytest.mark.parametrize('loss_fn, error', [
    (nn.CrossEntropyLoss(weight=torch.ones(3)), ValueError),
    (partial(nn.functional.cross_entropy, weight=torch.ones(3)), ValueError),
    (nn.Sequential(nn.Linear(3, 3)), TypeError)])
def test_a_loss_that_does_not_add_up_over_micro_batches_is_refused(loss_fn, error: type) -> None:
    with pytest.raises(error, match="reduction='sum'|put them into the last layer"):
        Pipeline(layers(2), [1, 1], devices=['cpu'] * 2, chunks=2, loss_fn=loss_fn)


@pytest.mark.parametrize('loss_fn, ignored', [
    (nn.functional.cross_entropy, -100), (nn.CrossEntropyLoss(), -100),
    (nn.CrossEntropyLoss(ignore_index=2), 2),
    (partial(nn.functional.cross_entropy, ignore_index=1), 1)])
def test_targets_that_the_mean_leaves_out_are_refused(loss_fn, ignored: int) -> None:
    pipeline = Pipeline(layers(2).float(), [1, 1], devices=['cpu'] * 2, chunks=2, loss_fn=loss_fn)
    pipeline.step(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match='left out of the mean'):
        pipeline.step(torch.zeros(4, 3), torch.tensor([0, 0, 0, ignored]))


@pytest.mark.parametrize('schedule', ['pipedream', '2bw'])
def test_updates_within_a_step_need_an_optimizer(schedule: str) -> None:
    with pytest.raises(ValueError, match='pass optimizer='):
        Pipeline(layers(2), [1, 1], devices=['cpu'] * 2, chunks=2, loss_fn=mse, schedule=schedule)


@given(cuts(FLUSHING))
def test_hooks_on_parameters_run_once_a_step(cut: dict) -> None:
    model, seen = layers(sum(cut['balance'])), []
    plain = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
        parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append(id(parameter)))
    [(x, y)] = batches(1, cut['chunks'])
    Pipeline(model, **cut, loss_fn=mse).step(x, y)
    mse(plain(x), y).backward()
    assert sorted(seen) == sorted(map(id, model.parameters()))
    torch.testing.assert_close([p.grad for p in model.parameters()],
                               [p.grad * 2 for p in plain.parameters()])


class Failing(nn.Module):
    """Raises in the backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.register_hook(self.fail)
        return y

    def fail(self, gradient: torch.Tensor) -> None:
        raise ZeroDivisionError


def test_a_step_that_ends_half_way_says_which_weights_it_has_changed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Failing(), nn.Linear(3, 3)).double()
    pipeline = Pipeline(model, [2, 1], devices=['cpu'] * 2, chunks=2, loss_fn=mse, optimizer=sgd,
                        schedule='pipedream')
    with pytest.raises(ZeroDivisionError) as caught:
        pipeline.step(*batches(1, 4)[0])
    first, *others = caught.value.__notes__
    assert 'in stage 0' in first and 'backward of micro-batch 0' in first
    assert any(re.search(r'weights of stages 1 have been updated( \(2 times\))? in this', note) for note in others)


def test_evaluations_and_steps_of_other_threads_take_turns() -> None:
    class Modes(nn.Module):
        seen: set[tuple[bool, bool]] = set()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add((self.training, torch.is_grad_enabled()))
            return x

    model = nn.Sequential(Modes(), nn.Linear(3, 3)).double()
    pipeline = Pipeline(model, [1, 1], devices=['cpu'] * 2, chunks=3, loss_fn=mse)
    [(x, y)] = batches(1, 6)
    threads = [threading.Thread(target=lambda step=step: [step(x, y) for _ in range(30)])
               for step in (pipeline.step, pipeline.eval_step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Modes.seen == {(True, True), (False, False)}


def test_nested_inputs_and_targets_reach_their_stages() -> None:
    class Add(nn.Module):
        def forward(self, pair):
            return {'sum': pair['a'] + pair['b']}

    class Take(nn.Module):
        def forward(self, nest):
            return nest['sum'] * 2

    x = {'a': torch.rand(6, 2, requires_grad=False), 'b': torch.rand(6, 2)}
    y = (torch.rand(6, 2), torch.rand(6, 2))
    pipeline = Pipeline(nn.Sequential(Add(), Take()), [1, 1], devices=['cpu'] * 2, chunks=3,
                        loss_fn=lambda output, target: mse(output, target[0] + target[1]))
    torch.testing.assert_close(pipeline.step(x, y), mse((x['a'] + x['b']) * 2, y[0] + y[1]))


def test_a_hand_written_schedule_runs() -> None:
    model = layers(3)
    pipeline = Pipeline(model, [1, 2], devices=['cpu'] * 2, chunks=2, loss_fn=mse, schedule=gpipe)
    [(x, y)] = batches(1, 4)
    torch.testing.assert_close(pipeline.step(x, y), mse(model(x), y).detach())


def test_a_wrong_hand_written_schedule_is_explained_before_anything_runs() -> None:
    def wrong(stages: int, micro_batches: int) -> Schedule:
        first, *others = gpipe(stages, micro_batches).rows
        return replace(gpipe(stages, micro_batches), rows=(first[::-1], *others))

    with pytest.raises(ScheduleError, match='a backward needs its own forward') as caught:
        Pipeline(layers(3), [1, 2], devices=['cpu'] * 2, chunks=2, loss_fn=mse, schedule=wrong)
    assert '[' in str(caught.value).partition('device 0')[2]   # the cell is marked in the grid
    with pytest.raises(ValueError, match='has sends and receives already'):
        Pipeline(layers(3), [1, 2], devices=['cpu'] * 2, chunks=2, loss_fn=mse,
                 schedule=lambda stages, micro_batches: with_messages(gpipe(stages, micro_batches)))
    with pytest.raises(ValueError, match='for 3 stages and 2 micro-batches, not for 2 and 2'):
        Pipeline(layers(3), [1, 2], devices=['cpu'] * 2, chunks=2, loss_fn=mse,
                 schedule=lambda stages, micro_batches: gpipe(stages + 1, micro_batches))


@pytest.mark.parametrize('change, error, message', [
    ({'schedule': 'best'}, ValueError, 'there is no schedule .best.: choose from gpipe, 1f1b'),
    ({'chunks': 0}, ValueError, 'at least one micro-batch'),
    ({'optimizer': torch.optim.SGD([torch.zeros(1)])}, TypeError, 'pass what makes it'),
    ({'checkpoint': 'sometimes'}, ValueError, "'always', 'except_last', or 'never'"),
    ({'devices': ['cpu']}, IndexError, 'too few devices'),
    ({'devices': 2}, TypeError, 'devices are a list, one a stage'),
    ({'schedule': gpipe(2, 2)}, TypeError, 'pass a function of stages and micro-batches'),
    ({'schedule': 'interleaved', 'balance': [1, 1, 1], 'devices': ['cpu'] * 2}, ValueError,
     'cannot be dealt out to 2 devices'),
    ({'balance': 2}, TypeError, 'balance is a list, how many layers each stage has, not 2'),
    ({'schedule': partial(pipedream, replicas=2)}, TypeError, r'as \(2, 1\), not one number'),
])
def test_what_cannot_be_is_refused_with_the_remedy(change: dict, error: type, message: str) -> None:
    options = {'balance': [1, 2], 'devices': ['cpu'] * 2, 'chunks': 2, 'loss_fn': mse, **change}
    with pytest.raises(error, match=message):
        Pipeline(layers(3), **options)


@pytest.mark.parametrize('x, y, error, message', [
    (None, torch.zeros(4, 3), TypeError, 'the first stage needs the inputs'),
    (torch.zeros(4, 3), None, TypeError, 'the last stage needs the targets'),
    (torch.zeros(4, 3), torch.zeros(5, 3), ValueError, '5 rows of targets for 4 rows of inputs'),
])
def test_a_step_says_what_is_missing(x, y, error: type, message: str) -> None:
    pipeline = Pipeline(layers(3).float(), [1, 2], devices=['cpu'] * 2, chunks=2, loss_fn=mse)
    with pytest.raises(error, match=message):
        pipeline.step(x, y)
    pipeline.step(torch.zeros(4, 3), torch.zeros(4, 3))


def test_a_loss_that_is_no_number_is_named_with_its_stage() -> None:
    pipeline = Pipeline(layers(3), [1, 2], devices=['cpu'] * 2, chunks=2,
                        loss_fn=nn.MSELoss(reduction='none'))
    with pytest.raises(TypeError, match='one number for a micro-batch.*shape') as caught:
        pipeline.step(*batches(1, 4)[0])
    assert 'in stage 1' in caught.value.__notes__[0]


class Net(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 10


def hooked() -> nn.Sequential:
    model = layers(2)
    model.register_forward_hook(lambda module, inputs, output: output * 10)
    return model


def with_buffer() -> nn.Sequential:
    model = layers(2)
    model.register_buffer('mean', torch.ones(3))
    return model


def sharing() -> nn.Sequential:
    first, second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    second.running_mean = first.running_mean
    return nn.Sequential(first, second)


@pytest.mark.parametrize('model, message', [
    (lambda: Net(*layers(2)), 'does more than to apply its layers'),
    (hooked, 'does more than to apply its layers'),
    (with_buffer, 'of its own, beside its layers'),
    (sharing, 'two layers share a buffer')])
def test_what_a_cut_would_leave_out_or_tear_apart_is_refused(model, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Pipeline(model(), [1, 1], devices=['cpu'] * 2, loss_fn=mse)


@pytest.mark.parametrize('make, message', [
    (lambda parameters: None, 'returned None'), (torch.optim.LBFGS, 'LBFGS computes the loss several')])
def test_an_optimizer_that_a_pipeline_cannot_use_is_refused(make, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Pipeline(layers(2), [1, 1], devices=['cpu'] * 2, loss_fn=mse, optimizer=make)


@pytest.mark.parametrize('loss_fn, message', [
    (lambda output, target: mse(output, target, reduction='sum'), "partial.*reduction='sum'"),
    (nn.MSELoss(reduction='sum').forward, None),
    (lambda output, target: (output - target).abs().max(), 'none: the loss of a mini-batch'),
    (lambda output, target: torch.tensor(3.0), 'nothing would be trained')])
def test_a_loss_is_put_to_the_test_when_it_is_first_used(loss_fn, message: str | None) -> None:
    pipeline = Pipeline(layers(2), [1, 1], devices=['cpu'] * 2, chunks=2, loss_fn=loss_fn)
    [(x, y)] = batches(1, 8)
    y[0] += 10   # two halves whose losses are nearly equal would tell nothing
    if message is None:
        torch.testing.assert_close(pipeline.step(x, y), loss_fn(pipeline.module(x), y).detach())
        return
    with pytest.raises((ValueError, RuntimeError), match=message):
        pipeline.step(x, y)


def test_a_failed_update_leaves_nothing_for_the_next_one() -> None:
    class Flaky(torch.optim.SGD):
        fails = True

        def step(self, closure=None):
            if self.fails:
                raise RuntimeError('disk full')
            return super().step(closure)

    model, [(x, y)] = layers(3), batches(1, 8)
    pipeline = Pipeline(model, [1, 2], devices=['cpu'] * 2, chunks=4, loss_fn=mse,
                        optimizer=lambda parameters: Flaky(parameters, lr=0.1))
    saved = copy.deepcopy(pipeline.state_dict())
    with pytest.raises(RuntimeError, match='disk full'):
        pipeline.step(x, y)
    Flaky.fails = False
    pipeline.load_state_dict(saved)
    plain = copy.deepcopy(model)
    pipeline.step(x, y)
    plain.zero_grad()
    plain_steps(plain, [(x, y)], torch.optim.SGD(plain.parameters(), lr=0.1))
    torch.testing.assert_close(pipeline.state_dict(), plain.state_dict())


def test_a_loss_that_calls_its_own_pipeline_is_refused_rather_than_hangs() -> None:
    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        pipeline.eval_step(x)
        return mse(output, target)

    [(x, y)] = batches(1, 8)
    pipeline = Pipeline(layers(2), [1, 1], devices=['cpu'] * 2, chunks=2, loss_fn=loss_fn)
    with pytest.raises(RuntimeError, match='a pipeline inside a pipeline'):
        pipeline.step(x, y)


def test_a_pipeline_says_that_it_is_not_copied() -> None:
    with pytest.raises(TypeError, match='state_dict'):
        copy.deepcopy(Pipeline(layers(2), [1, 1], devices=['cpu'] * 2, loss_fn=mse))


@pytest.mark.parametrize('schedule', [*SCHEDULES, pytest.param(partial(pipedream, replicas=(2, 1)), id='pipedream-2-1')])
def test_any_number_of_rows_is_evaluated_whatever_the_schedule_trains_on(schedule) -> None:
    stages = 4 if schedule in ('interleaved', 'v-shape') else 2
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))).double()
    devices = ['cpu'] * (3 if isinstance(schedule, partial) else 2)
    pipeline = Pipeline(model, [4 // stages] * stages, schedule=schedule, chunks=4, devices=devices, loss_fn=mse,
                        optimizer=partial(torch.optim.SGD, lr=0.1))
    for rows in (1, 2, 3, 5, 8):
        x, y = torch.randn(2, rows, 3, dtype=torch.float64)
        torch.testing.assert_close(pipeline.eval_step(x, y), mse(model(x), y).detach())
        torch.testing.assert_close(pipeline.eval_step(x), model(x).detach())
