"""What users of pipeline libraries reported as wrong, as laws of ours: a test's name says the law.

Most of these hold for all networks in test_gpipe_equals_plain; here each kind of fault has networks
that are sure to contain it.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.gpipe import GPipe
from fewgpu.recompute import is_recomputing
from fewgpu.stage import Stage
from tests.layers import Call, LAYERS, batch
from tests.networks import CHECKPOINTS, Case, cases, evenly, virtual
from tests.reference import Pipelined, compare, differences, gradients, seen
from tests.test_gpipe_equals_plain import train, train_step

RECOMPUTING = st.sampled_from(['always', 'except_last'])


def one_step(engine: Pipelined) -> list:
    return train_step(engine, 0)


@given(cases(start='nest', first=('mix', 'linear in nest', 'mix'),
             inputs_need_gradient=True))
def test_numbers_masks_and_none_reach_every_layer_in_every_micro_batch(case: Case) -> None:
    assert not compare(case, one_step)


@given(st.sampled_from(CHECKPOINTS), evenly(1, 4), st.lists(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False), max_size=3))
def test_what_is_no_tensor_comes_out_as_it_went_in(checkpoint: str, chunks: int,
                                                   extra: list) -> None:
    model = GPipe(nn.Sequential(*(Call(lambda x: x) for _ in range(3))), [1, 1, 1],
                  devices=virtual(3), chunks=chunks, checkpoint=checkpoint)
    inputs = {'x': torch.ones(5, 2), 'extra': tuple(extra), 'nested': [(torch.arange(5), None)]}
    assert not differences(model(inputs), inputs)


@given(evenly(1, 12), evenly(1, 12), st.sampled_from(CHECKPOINTS))
def test_rows_are_spread_evenly_and_only_the_last_micro_batch_is_spared_the_recompute(
        rows: int, chunks: int, checkpoint: str) -> None:
    """5 rows in 4 chunks are 4 micro-batches of 2, 1, 1, 1 rows."""
    first, second = [], []
    layer = Call(lambda x: ((second if is_recomputing() else first).append(len(x)), x)[1])
    model = GPipe(nn.Sequential(nn.Linear(2, 2), layer), [2], devices=virtual(1), chunks=chunks,
                  checkpoint=checkpoint)
    model(torch.ones(rows, 2)).sum().backward()
    assert sum(first) == rows and len(first) == min(rows, chunks)
    assert max(first) - min(first) <= 1
    assert second == {'always': first, 'except_last': first[:-1], 'never': []}[checkpoint][::-1]


@given(st.integers(1, 3), evenly(2, 4), st.sampled_from(CHECKPOINTS),
       st.sampled_from(['mean', 'sum']))
def test_gradients_have_the_plain_scale_when_micro_batches_are_unequal(
        whole: int, chunks: int, checkpoint: str, reduction: str) -> None:
    rows = whole * chunks + 1   # one micro-batch has a row more
    case = Case('rows', ('linear of rows', 'tanh of rows', 'linear of rows'), (1, 2), rows, chunks,
                checkpoint)
    results = []
    for model in (case.pipeline(torch.float64), case.model(torch.float64)):
        inputs = case.inputs(dtype=torch.float64)
        loss = nn.functional.mse_loss(model(inputs), torch.ones_like(inputs), reduction=reduction)
        loss.backward()
        results.append([loss.detach(), gradients(model, inputs)])
    assert not differences(*results, tolerance=1e-12)


@given(cases(start='sequence', first=('twice of sequence', 'lstm', 'output of lstm')))
def test_a_weight_that_a_layer_uses_twice_has_the_sum_of_both_gradients(case: Case) -> None:
    assert not compare(case, one_step)


@given(cases(start='rows', first=('linear of rows', 'layer norm of rows', 'residual of rows'),
             inputs_need_gradient=True), RECOMPUTING)
def test_a_recompute_casts_to_the_dtype_of_its_forward(case: Case, checkpoint: str) -> None:
    assert not compare(case, one_step, autocast=torch.bfloat16, checkpoint=checkpoint)


@given(cases(start='image', first=('batch norm', 'conv', 'block')), RECOMPUTING)
def test_batch_norm_is_updated_once_a_forward_and_not_again_in_the_recompute(
        case: Case, checkpoint: str) -> None:
    assert not compare(case, train, checkpoint=checkpoint)


@given(cases(start='rows', first=('dropout of rows', 'linear of rows', 'dropout of rows')),
       RECOMPUTING)
def test_dropout_has_the_same_masks_in_forward_and_recompute(case: Case, checkpoint: str) -> None:
    assert not compare(case, train, checkpoint=checkpoint)


@given(cases(start='ids', first=('embedding', 'linear of sequence'), frozen=()), RECOMPUTING)
def test_a_recomputed_embedding_trains(case: Case, checkpoint: str) -> None:
    """Its inputs need no gradient, its weight does."""
    def scenario(engine: Pipelined) -> list:
        results = one_step(engine)
        assert engine.model[0].weight.grad is not None
        return results

    assert not compare(case, scenario, checkpoint=checkpoint)


@given(cases(start='ids', first=('embedding beside', 'skip of beside'), frozen=()), RECOMPUTING)
def test_a_skip_round_an_embedding_trains(case: Case, checkpoint: str) -> None:
    """Integers cross the boundary beside what needs a gradient."""
    def scenario(engine: Pipelined) -> list:
        results = one_step(engine)
        assert all(layer.table.weight.grad is not None for layer in [*engine.model][:2])
        return results

    assert not compare(case, scenario, checkpoint=checkpoint)


@given(st.sampled_from(['linear in nest', 'mix', 'relu_ in nest']), st.booleans(),
       st.sampled_from(['graph', 'input']))
def test_no_gradient_travels_for_a_float_tensor_that_needs_none(name: str, last: bool,
                                                                keep: str) -> None:
    """It would wait for ever for a receiver, or be computed for nothing."""
    device = Device('cpu')
    step = Stage(0, nn.Sequential(LAYERS[name].make()), device).begin(Context.capture([device]), 1)
    inputs = batch('nest', 3, torch.Generator().manual_seed(0), torch.float32)
    inputs['x'].requires_grad_()
    outputs = step.forward(0, inputs, keep)
    flat, spec = pytree.tree_flatten(outputs)
    step.recompute(0)
    sent = step.backward(0, [torch.ones_like(leaf) if leaf is outputs['x'] else None
                             for leaf in flat])
    assert [gradient is not None for gradient in sent] == [
        leaf is inputs['x'] for leaf in pytree.tree_leaves(inputs)]
    assert [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in flat] == [
        leaf is outputs['x'] for leaf in flat]


@given(st.sampled_from(CHECKPOINTS), st.lists(st.sampled_from(['train', 'eval', 'no target']),
                                              min_size=3, max_size=6))
def test_train_eval_and_eval_without_target_alternate(checkpoint: str, modes: list[str]) -> None:
    layers = ('conv', 'batch norm', 'relu_ of image', 'dropout of channels', 'pool')
    case = Case('image', layers, (2, 3), 5, 3, checkpoint)

    def scenario(engine: Pipelined) -> list:
        results: list[Any] = []
        for step, mode in enumerate(modes):
            engine.model.train(mode == 'train')
            if mode == 'no target':
                with torch.no_grad():
                    results.append(seen(engine(case.inputs(step)).outputs))
            else:
                results.append(train_step(engine, step))
        return results

    assert not compare(case, scenario)


@given(st.sampled_from(CHECKPOINTS), evenly(2, 6))
def test_a_buffer_that_a_layer_returns_arrives_as_it_was(checkpoint: str, chunks: int) -> None:
    """Although the sender's next forward writes into it."""
    class Count(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('runs', torch.zeros(1))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.runs += 1
            return x, self.runs

    model = GPipe(nn.Sequential(Count(), Call(lambda both: both[0] + both[1])), [1, 1],
                  devices=virtual(2), chunks=chunks, checkpoint=checkpoint)
    inputs = torch.zeros(chunks, requires_grad=True)
    assert model(inputs).tolist() == list(range(1, chunks + 1))


@given(cases(start='rows', first=('relu_ of rows', 'linear of rows', 'add_ of rows')))
def test_a_first_layer_may_work_in_place_in_any_stage_and_the_inputs_stay_as_they_were(
        case: Case) -> None:
    def scenario(engine: Pipelined) -> list:
        inputs = case.inputs()
        before = inputs.detach().clone()
        run = engine(inputs)
        assert torch.equal(inputs, before)
        loss = case.loss(run.outputs)
        if loss is not None:
            loss.backward()
            run.backward()
        return [seen(run.outputs), gradients(engine.model, inputs)]

    assert not compare(case, scenario)


@given(cases(start='rows', first=('linear of rows', 'twice of rows')))
def test_raw_gradients_equal_plain_not_only_what_adam_makes_of_them(case: Case) -> None:
    """Adam hides a wrong scale; what it is given is compared, and what it keeps."""
    def scenario(engine: Pipelined) -> list:
        optimizer = torch.optim.Adam(engine.model.parameters())
        results = []
        for step in range(2):
            results.append(train_step(engine, step))
            optimizer.step()
            results.append([seen(list(kept.values())) for kept in optimizer.state.values()])
        return results

    assert not compare(case, scenario)


def test_an_object_that_hides_tensors_is_refused_where_it_would_cross() -> None:
    class Hidden:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    model = GPipe(nn.Sequential(nn.Linear(2, 2), Call(Hidden), Call(lambda h: h.tensor)), [2, 1],
                  devices=virtual(2))
    with pytest.raises(TypeError, match='output is a Hidden'):
        model(torch.ones(1, 2))
