"""Laws of batch norm in a pipeline: running statistics, deferred or not.

Normalisation is by the micro-batch in both; deferred statistics are compared with those of a plain
batch norm over the whole mini-batch, in float64 to 1e-9 (another order of the same sums).
"""

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu.batchnorm import DeferredBatchNorm
from fewgpu.gpipe import GPipe
from tests.layers import Call
from tests.networks import CHECKPOINTS, Case, cases, evenly, virtual
from tests.reference import Pipelined, compare, differences, seen, state
from tests.test_gpipe_equals_plain import train, train_step

MOMENTA = st.sampled_from([None, 0.1, 0.5, 1.0])
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}   # dimensions behind the features


def norm_and_inputs(dims: int, **options) -> tuple[nn.Module, list[torch.Tensor]]:
    """A batch norm layer of 3 features, and three mini-batches of 1 to 9 rows."""
    generator = torch.Generator().manual_seed(dims)
    inputs = [torch.randn(rows, 3, *[2] * dims, generator=generator, dtype=torch.float64) * 3 + 5
              for rows in (9, 4, 1)]
    return NORMS[dims](3, **options).double(), inputs


@given(st.sampled_from([1, 2, 3]), MOMENTA, st.booleans(), evenly(1, 6),
       st.sampled_from(CHECKPOINTS))
def test_deferred_statistics_are_those_of_one_update_over_the_mini_batch(
        dims: int, momentum: float | None, affine: bool, chunks: int, checkpoint: str) -> None:
    """Unbiased variance, num_batches_tracked too, and with fewer rows than chunks."""
    plain, inputs = norm_and_inputs(dims, momentum=momentum, affine=affine)
    model = GPipe(nn.Sequential(Call(torch.clone), copy.deepcopy(plain), nn.Tanh()), [1, 2],
                  devices=virtual(2), chunks=chunks, checkpoint=checkpoint,
                  deferred_batch_norm=True)
    for x in inputs:
        plain(x)
        model(x.requires_grad_()).sum().backward()
        assert not differences(state(model[1]), state(plain), tolerance=1e-9)
    model.eval()
    assert not differences(model[1](inputs[0]), plain.eval()(inputs[0]), tolerance=1e-9)


@given(MOMENTA, evenly(2, 5), st.sampled_from(CHECKPOINTS), st.integers(0, 4))
def test_deferred_statistics_start_afresh_after_an_exception(
        momentum: float | None, chunks: int, checkpoint: str, fails_at: int) -> None:
    plain, inputs = norm_and_inputs(2, momentum=momentum)
    seen_so_far = []

    def fail(x: torch.Tensor) -> torch.Tensor:
        seen_so_far.append(x)
        if len(seen_so_far) == min(fails_at + 1, chunks):
            raise ZeroDivisionError
        return x

    model = GPipe(nn.Sequential(copy.deepcopy(plain), Call(fail)), [1, 1], devices=virtual(2),
                  chunks=chunks, checkpoint=checkpoint, deferred_batch_norm=True)
    with pytest.raises(ZeroDivisionError):
        model(inputs[0])
    before = state(model)
    if fails_at + 1 >= chunks:   # all micro-batches had passed the batch norm, and count
        plain(inputs[0])
    if int(before['0.num_batches_tracked']) != int(plain.num_batches_tracked):
        plain(inputs[0])         # the first stage was ahead
    model(inputs[1])
    plain(inputs[1])
    assert not differences(state(model[0]), state(plain), tolerance=1e-9)


@given(evenly(2, 5))
def test_evaluation_between_steps_does_not_disturb_deferred_statistics(chunks: int) -> None:
    plain, inputs = norm_and_inputs(1)
    model = GPipe(nn.Sequential(copy.deepcopy(plain)), [1], devices=virtual(1), chunks=chunks,
                  deferred_batch_norm=True)
    for x in inputs:
        model.eval()
        before = state(model)
        model(inputs[0])
        assert not differences(state(model), before)
        model.train()
        model(x)
        plain(x)
    assert not differences(state(model[0]), state(plain), tolerance=1e-9)


@given(cases(start='image', first=('conv', 'batch norm', 'block')))
def test_deferring_changes_no_training_output_and_no_gradient(case: Case) -> None:
    """Only the running statistics: what training computes does not use them."""
    one, other = (train_step(Pipelined(case, case.pipeline(deferred_batch_norm=deferred)), 0)
                  for deferred in (False, True))
    if case.has('draws') and case.chunks:   # other random numbers: compare what does not draw
        return
    assert not differences(one, other, tolerance=1e-5)   # the same sums, in another kernel


@given(cases(start='image', first=('conv', 'batch norm', 'mean batch norm')))
def test_without_deferring_each_micro_batch_updates_once_and_never_its_recompute(
        case: Case) -> None:
    def scenario(engine: Pipelined) -> list:
        results = train(engine, steps=2)
        for layer in (engine.model[1], engine.model[2]):
            assert int(layer.num_batches_tracked) == 2 * case.micro_batches
        return results

    assert not compare(case, scenario)


@given(st.sampled_from(CHECKPOINTS), evenly(1, 4), st.booleans())
def test_frozen_batch_norm_keeps_its_statistics(checkpoint: str, chunks: int,
                                                deferred: bool) -> None:
    """One that is in evaluation mode when it is put into a pipeline stays so."""
    norm = nn.BatchNorm2d(3).eval()
    before = state(norm)
    model = GPipe(nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.ReLU(inplace=True)), [1, 2],
                  devices=virtual(2), chunks=chunks, checkpoint=checkpoint,
                  deferred_batch_norm=deferred)
    model(torch.randn(5, 1, 4, 4)).sum().backward()
    assert model.training and not model[1].training
    assert not differences(state(model[1]), before)
    assert model[1].weight.grad is not None


@given(st.booleans(), MOMENTA)
def test_a_deferred_layer_has_the_parameters_and_keys_of_the_plain_one(
        training: bool, momentum: float | None) -> None:
    """So an optimizer made before still trains it, and checkpoints move freely."""
    block = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Sequential(nn.BatchNorm2d(2, momentum=momentum)))
    block.train(training)
    parameters, keys = list(block.parameters()), list(block.state_dict())
    deferred = DeferredBatchNorm.convert_deferred_batch_norm(block, 2)
    assert isinstance(deferred[1][0], DeferredBatchNorm)
    assert all(a is b for a, b in zip(deferred.parameters(), parameters, strict=True))
    assert list(deferred.state_dict()) == keys
    assert all(part.training is training for part in deferred.modules())
    again = DeferredBatchNorm.convert_deferred_batch_norm(deferred, 3)
    assert again[1][0] is deferred[1][0] and again[1][0].chunks == 3


def test_a_batch_norm_without_statistics_is_left_as_it_is() -> None:
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    assert DeferredBatchNorm.convert_deferred_batch_norm(norm, 2) is norm


@settings(max_examples=10)
@given(evenly(2, 4), st.sampled_from(CHECKPOINTS))
def test_deferred_statistics_of_bfloat16_inputs_gather_in_float32(chunks: int,
                                                                  checkpoint: str) -> None:
    x = (torch.arange(96.).view(8, 3, 4).sin() + 9).bfloat16()
    plain = nn.BatchNorm1d(3)
    model = GPipe(nn.Sequential(copy.deepcopy(plain)), [1], devices=virtual(1), chunks=chunks,
                  checkpoint=checkpoint, deferred_batch_norm=True)
    with torch.autocast('cpu', torch.bfloat16):
        outputs = model(x)
    plain(x.float())
    assert seen(outputs)[0].dtype == torch.bfloat16
    assert not differences(state(model[0]), state(plain), tolerance=1e-6)


def test_a_batch_norm_in_two_places_stays_one_layer_when_it_is_deferred() -> None:
    shared = nn.BatchNorm1d(3)
    module = nn.Sequential(nn.Sequential(shared, nn.Linear(3, 3)), nn.Sequential(shared))
    converted = DeferredBatchNorm.convert_deferred_batch_norm(module, chunks=2)
    assert converted[0][0] is converted[1][0] and isinstance(converted[0][0], DeferredBatchNorm)
