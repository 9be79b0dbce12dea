"""A pipeline computes what the plain model computes, whatever the network and however it is cut.

Where the arithmetic is the same the law is equality of every bit, in float32: that is the plain
model run one micro-batch after another (tests.reference). Where only the mathematics is the same,
the plain model on the whole mini-batch, both sides compute in float64 and may differ by 1e-9 of the
largest magnitude in a tensor: rounding is 1e-16 an operation, and a wrong gradient is off by far
more.
"""

import contextlib

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils import _pytree as pytree

from tests.networks import Case, cases, seeded
from tests.reference import Pipelined, compare, differences, gradients, seen, state

OPTIMIZERS = {
    'SGD': lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    'Adam': lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
EVERY_MODE = {
    'eval': contextlib.nullcontext,
    'no_grad': torch.no_grad,
    'inference_mode': torch.inference_mode,
}


def train_step(engine: Pipelined, step: int) -> list:
    """Forward, loss, backward; all that can be seen of it."""
    inputs = engine.case.inputs(step)
    run = engine(inputs)
    result = [seen(run.outputs)]
    loss = engine.case.loss(run.outputs)
    if loss is not None:
        loss.backward()
        run.backward()
        result.append(loss.detach())
    return [*result, gradients(engine.model, inputs)]


def train(engine: Pipelined, optimizer: str = 'SGD', steps: int = 3) -> list:
    """Training steps; parameters and buffers after each of them."""
    parameters = list(engine.model.parameters())
    optimizer = OPTIMIZERS[optimizer](parameters) if parameters else None
    results = []
    for step in range(steps):
        results.append(train_step(engine, step))
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
        results.append(state(engine.model))
    return results


@settings(max_examples=80)
@given(cases(), st.sampled_from(sorted(OPTIMIZERS)))
def test_three_optimizer_steps_equal_plain(case: Case, optimizer: str) -> None:
    """Outputs, losses, gradients, parameters, statistics, and the caller's generator."""
    assert not compare(case, lambda engine: train(engine, optimizer))


@pytest.mark.slow
@settings(max_examples=500)
@given(cases(), st.sampled_from(sorted(OPTIMIZERS)))
def test_three_optimizer_steps_equal_plain_in_many_networks(case: Case, optimizer: str) -> None:
    assert not compare(case, lambda engine: train(engine, optimizer))


@given(cases(without=('draws', 'batch norm', 'counts')))
def test_training_equals_plain_on_the_whole_mini_batch(case: Case) -> None:
    """Whatever the micro-batches: also of unequal sizes, the loss being a mean over all rows."""
    results = []
    for model in (case.pipeline(torch.float64), case.model(torch.float64)):
        inputs = case.inputs(dtype=torch.float64)
        # A copy, because a first layer may work in place, which plain tensors that need gradients
        # refuse.
        outputs = model(pytree.tree_map_only(torch.Tensor, torch.clone, inputs))
        loss = case.loss(outputs)
        if loss is not None:
            loss.backward()
        results.append([seen(outputs), gradients(model, inputs)])
    assert not differences(*results, tolerance=1e-9)


@given(cases())
def test_autocast_reaches_forward_and_recompute(case: Case) -> None:
    """Same dtypes, same bits as the plain model under autocast."""
    assert not compare(case, train_step_once, autocast=torch.bfloat16)


def train_step_once(engine: Pipelined) -> list:
    return train_step(engine, 0)


# (Without layers that change their parameters: between forward and backward those must stay.)
@given(cases(without=('bounds',)), st.booleans())
def test_two_forwards_may_come_before_their_backwards(case: Case, in_order: bool) -> None:
    def scenario(engine: Pipelined) -> list:
        batches = [case.inputs(0), case.inputs(1)]
        runs = [engine(batch) for batch in batches]
        losses = [case.loss(run.outputs) for run in runs]
        for loss, run in zip(*((losses, runs) if in_order else (losses[::-1], runs[::-1]))):
            if loss is not None:
                loss.backward()
                run.backward()
        return [gradients(engine.model, batches), *(seen(run.outputs) for run in runs)]

    assert not compare(case, scenario)


@given(cases(without=('bounds',)))
def test_one_loss_may_use_two_forwards(case: Case) -> None:
    def scenario(engine: Pipelined) -> list:
        batches = [case.inputs(0), case.inputs(1)]
        runs = [engine(batch) for batch in batches]
        losses = [case.loss(run.outputs) for run in runs]
        if None not in losses:
            (losses[0] * losses[1]).backward()
            for run in runs:
                run.backward()
        return gradients(engine.model, batches)

    assert not compare(case, scenario)


@given(cases(), st.integers(2, 3))
def test_gradients_accumulate_over_backwards(case: Case, steps: int) -> None:
    assert not compare(case, lambda engine: [train_step(engine, step) for step in range(steps)])


@given(cases())
def test_a_retained_graph_gives_its_gradients_again(case: Case) -> None:
    def scenario(engine: Pipelined) -> list:
        inputs = case.inputs()
        run = engine(inputs)
        loss = case.loss(run.outputs)
        results = []
        for retain_graph in (True, True, False):
            if loss is not None:
                loss.backward(retain_graph=retain_graph)
                run.backward(retain_graph=retain_graph)
            results.append(gradients(engine.model, inputs))
        return results

    assert not compare(case, scenario)


# (nn.LSTM keeps a second list of its parameters.)
@given(cases() | cases(start='sequence', first=('lstm', 'output of lstm'), frozen=()))
def test_gradients_come_through_the_callers_graph_and_by_no_other_way(case: Case) -> None:
    """torch.autograd.grad gives what backward would add, and adds nothing."""
    results = []
    for direct in (True, False):
        model = case.pipeline()
        with seeded(case.seed):
            loss = case.loss(model(case.inputs()))
        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if loss is None or not wanted:
            return
        if direct:
            results.append(list(torch.autograd.grad(loss, wanted, allow_unused=True)))
            assert all(parameter.grad is None for parameter in model.parameters())
        else:
            loss.backward()
            results.append([parameter.grad for parameter in wanted])
    assert not differences(*results)


@given(cases(), st.sampled_from(sorted(EVERY_MODE)))
def test_evaluation_equals_plain_and_changes_nothing(case: Case, mode: str) -> None:
    def scenario(engine: Pipelined) -> list:
        engine.model.eval()
        before = state(engine.model)
        with EVERY_MODE[mode]():
            outputs = engine(case.inputs()).outputs
            if not (case.has('counts') or case.has('bounds')):
                assert not differences(before, state(engine.model))
            return seen(outputs)

    assert not compare(case, scenario)


@given(cases(without=('bounds',)),
       st.lists(st.sampled_from(['train', *sorted(EVERY_MODE)]), min_size=2, max_size=5))
def test_training_and_evaluation_alternate_freely(case: Case, modes: list[str]) -> None:
    def scenario(engine: Pipelined) -> list:
        results = []
        for step, mode in enumerate(modes):
            engine.model.train(mode == 'train')
            with EVERY_MODE.get(mode, contextlib.nullcontext)():
                results.append(train_step(engine, step) if mode in ('train', 'eval')
                               else seen(engine(case.inputs(step)).outputs))
        return results

    assert not compare(case, scenario)


@given(cases())
def test_every_checkpoint_mode_gives_the_same_bits(case: Case) -> None:
    results = []
    for checkpoint in ('always', 'except_last', 'never'):
        with seeded(case.seed):
            results.append(train(Pipelined(case, case.pipeline(checkpoint=checkpoint))))
    assert not differences(results[0], results[1]) and not differences(results[0], results[2])
