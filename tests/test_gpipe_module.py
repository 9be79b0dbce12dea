"""GPipe as an nn.Module: its modes, hooks, names, and what it refuses with a reason."""

import warnings
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu import GPipe, is_checkpointing, is_recomputing
from tests.pipes import CHECKPOINTS, Call, Failing, Slow, cut, mlp

NAMES = ('balance', 'devices', 'stage_devices', 'chunks', 'checkpoint', 'partitions', 'timeline', 'module')


@given(rows=st.integers(1, 9), chunks=st.integers(1, 6), checkpoint=st.sampled_from(CHECKPOINTS))
def test_all_micro_batches_but_the_last_are_recomputed_however_many_there_are(
        rows: int, chunks: int, checkpoint: str) -> None:
    sizes: list[tuple[bool, int]] = []
    model = cut(Call(lambda x: sizes.append((is_recomputing(), len(x))) or x * 2), nn.Linear(2, 2),
                chunks=chunks, checkpoint=checkpoint)
    model(torch.rand(rows, 2, requires_grad=True)).sum().backward()
    first = [size for again, size in sizes if not again]
    assert sum(first) == rows and max(first) - min(first) <= 1 and len(first) == min(rows, chunks)
    again = {'always': len(first), 'except_last': len(first) - 1, 'never': 0}[checkpoint]
    assert sum(again for again, _ in sizes) == again


def test_an_indivisible_or_small_mini_batch_raises_no_warning() -> None:
    model = cut(nn.Linear(1, 1), nn.Linear(1, 1), chunks=4)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert [len(model(torch.rand(rows, 1))) for rows in (7, 2, 1)] == [7, 2, 1]


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_a_layer_knows_whether_it_will_run_or_runs_again(checkpoint: str) -> None:
    seen: list[tuple[bool, bool]] = []
    model = cut(Call(lambda x: seen.append((is_checkpointing(), is_recomputing())) or x),
                nn.Linear(2, 2), chunks=3, checkpoint=checkpoint)
    model(torch.rand(3, 2, requires_grad=True)).sum().backward()
    count = {'always': 3, 'except_last': 2, 'never': 0}[checkpoint]
    assert seen.count((True, False)) == seen.count((False, True)) == count
    assert seen.count((False, False)) == 3 - count
    assert not is_checkpointing() and not is_recomputing()


def test_evaluation_recomputes_nothing_and_alternates_with_training() -> None:
    failing = Failing()
    model = cut(nn.Linear(2, 2), failing, nn.Linear(2, 1), chunks=2, checkpoint='always')
    for mode in (False, True, False, True):
        failing.recover()
        model.train(mode)
        assert {part.training for part in (model, *model, *model.partitions)} == {mode}
        model(torch.rand(4, 2)).sum().backward()
        assert failing.runs['recompute'] == (2 if mode else 0)


def test_layers_keep_their_own_mode_when_the_model_is_wrapped() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
    layers[1].eval()   # as when batch norm is frozen
    model = GPipe(layers, [1, 1], devices=['cpu'] * 2)
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    assert not GPipe(nn.Sequential(nn.Linear(2, 2)).eval(), [1], devices=['cpu']).training


def test_hooks_of_partitions_and_layers_run_once_a_micro_batch() -> None:
    model = cut(nn.Linear(2, 2), nn.Linear(2, 2), chunks=3, checkpoint='never')
    seen: list[str] = []
    model.register_forward_hook(lambda *_: seen.append('model'))
    model.partitions[1].register_forward_hook(lambda *_: seen.append('partition'))
    model[1].register_forward_pre_hook(lambda *_: seen.append('before'))
    model[1].register_full_backward_hook(lambda *_: seen.append('backward'))
    model(torch.rand(3, 2)).sum().backward()
    assert [seen.count(what) for what in ('model', 'partition', 'before', 'backward')] == [1, 3, 3, 3]


@given(names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True), data=st.data())
def test_layers_keep_their_names_whatever_they_are(names: list[str], data) -> None:
    """Also names that are the pipeline's own attributes; checkpoints move to and from the plain."""
    def build() -> nn.Sequential:
        return nn.Sequential(OrderedDict((name, nn.Linear(2, 2)) for name in names))

    plain = build()
    first = data.draw(st.integers(1, len(names)))
    balance = [count for count in (first, len(names) - first) if count]
    model = GPipe(build(), balance, devices=['cpu'] * 2, chunks=2)
    model.load_state_dict(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    x = torch.rand(4, 2)
    assert torch.equal(model(x), torch.cat([plain(part) for part in x.split(2)]))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert (model.balance, model.chunks, len(model.devices)) == (balance, 2, len(balance))


@pytest.mark.parametrize('move', [
    lambda model: model.cuda(), lambda model: model.cpu(), lambda model: model.to('cuda'),
    lambda model: model.to(0), lambda model: model.to(torch.device('cpu')),
    lambda model: model.to(device=0), lambda model: model.to('cpu', torch.half),
    lambda model: model.to(torch.rand(1)), lambda model: model.to(tensor=torch.rand(1))])
def test_moving_is_refused_with_a_reason_and_casting_is_not(move) -> None:
    model = cut(nn.Linear(2, 2), nn.Linear(2, 2), chunks=2)
    with pytest.raises(TypeError, match='denied to move.*GPipe should manage device placement'):
        move(model)
    model.to(torch.float64)
    output = model(torch.rand(4, 2).double())
    output.sum().backward()
    assert output.dtype == model[0].weight.grad.dtype == torch.float64


@pytest.mark.parametrize('change', [
    lambda model: model.add_module('0', nn.Linear(2, 2)),
    lambda model: setattr(model, '1', nn.Identity()),
    lambda model: model.add_module('more', nn.Linear(2, 2)),
    lambda model: model.partitions[0].__setitem__(0, nn.Linear(2, 2)),
    lambda model: nn.SyncBatchNorm.convert_sync_batchnorm(model)])
def test_a_layer_that_is_replaced_after_the_cut_is_refused_rather_than_ignored(change) -> None:
    model = cut(nn.Linear(2, 2), nn.BatchNorm1d(2), chunks=2)
    change(model)
    with pytest.raises(RuntimeError, match='change the layers first, then make the GPipe'):
        model(torch.rand(4, 2))


def test_a_lazy_layer_is_refused_until_it_has_run() -> None:
    layers = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match='run the module once'):
        GPipe(layers, [1, 1], devices=['cpu'] * 2)
    layers(torch.rand(4, 5))
    assert GPipe(layers, [1, 1], devices=['cpu'] * 2)(torch.rand(4, 5)).shape == (4, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
@pytest.mark.parametrize('device', ['cuda', 'cuda:1', 0, torch.device('cuda', 0)])
def test_a_gpu_that_is_not_there_is_named_with_the_remedy(device) -> None:
    with pytest.raises(ValueError, match='there is no cuda.* here: use virtual CPU devices'):
        GPipe(nn.Sequential(nn.Linear(1, 1)), [1], devices=[device])


def test_several_inputs_or_names_are_refused_with_what_to_do() -> None:
    model = cut(nn.Linear(1, 1))
    for call in (lambda x: model(x, x), lambda x: model(x, mask=x), lambda x: model()):
        with pytest.raises(TypeError, match='pass several tensors as a tuple or dict'):
            call(torch.rand(2, 1))


@pytest.mark.parametrize('value', [object(), {1, 2}, 'text', [torch.rand(2, 1), 'text']])
def test_what_cannot_cross_between_stages_is_named(value) -> None:
    """A class that torch cannot look into would hide tensors with their graph."""
    model = cut(Call(lambda x: {'x': x, 'more': value}), Call(lambda d: d['x']), chunks=2)
    with pytest.raises(TypeError, match=r"expected Tensor: output\['more'\]") as caught:
        model(torch.rand(2, 1))
    assert 'in stage 0' in caught.value.__notes__[0]


@pytest.mark.parametrize('layers, checkpoint', [
    ([nn.ReLU(inplace=True), nn.Linear(4, 4)], 'always'),
    ([nn.Linear(4, 4), nn.ReLU(inplace=True)], 'always'),
    ([nn.Linear(4, 4), Call(lambda x: x.add_(1).mul_(2))], 'except_last'),
    ([nn.Linear(4, 4), Call(lambda x: x.add_(1).mul_(2))], 'never')])
def test_in_place_layers_at_a_boundary_train_as_elsewhere_and_spare_the_input(
        layers: list, checkpoint: str) -> None:
    plain = nn.Sequential(*layers).double()
    model = cut(*plain, chunks=3, checkpoint=checkpoint)
    x = torch.randn(6, 4, dtype=torch.float64)
    before = x.clone()
    model(x).square().sum().backward()
    assert torch.equal(x, before)
    found = [p.grad.clone() for p in plain.parameters()]
    plain.zero_grad()
    plain(before.clone()).square().sum().backward()
    torch.testing.assert_close(found, [p.grad for p in plain.parameters()])


def test_a_failing_stage_stops_the_others_at_their_next_operation() -> None:
    counting, failing = Failing(), Failing()
    model = cut(nn.Sequential(counting, Slow(0.05)), failing, nn.Linear(2, 2), chunks=8)
    failing.fail('forward', 0, ArithmeticError('wrong'))
    with pytest.raises(ArithmeticError, match='wrong'):
        model(torch.rand(8, 2))
    assert counting.runs['forward'] < 8 and failing.runs['forward'] == 1


def test_what_is_set_on_the_model_counts_from_the_next_forward() -> None:
    model = cut(*mlp(), chunks=1, checkpoint='never')
    model.chunks, model.checkpoint = 4, 'always'
    model(torch.rand(8, 4).double()).sum().backward()
    kinds = [span.op.kind for span in model.timeline.rows[0]]
    assert (kinds.count('F'), kinds.count('R'), kinds.count('B')) == (4, 4, 4)
