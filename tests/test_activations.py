"""Recomputed or moved to the host, activations give the same gradients in less memory, by the law."""

import contextlib
import copy
import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fewgpu.activations import compare, offloading_activations, train_in_segments
from fewgpu.device import Device, one_thread
from tests.networks import cases, seeded
from tests.reference import gradients


def square(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


@given(cases(inputs_need_gradient=False, used=(True,), chunks=1, without=('draws', 'bounds')), st.integers(0, 3))
def test_moved_to_the_host_the_gradients_are_the_same(case, ahead):
    plain, ours, device = case.model(), case.model(), Device('cpu')
    for model in (plain, ours):
        with one_thread(), offloading_activations(device, model.parameters(), ahead) if model is ours else seeded(0):
            loss = case.loss(model(case.inputs()))
            if loss is not None and loss.requires_grad:
                loss.backward()
    assert str(gradients(ours)) == str(gradients(plain))


@given(st.integers(1, 9), st.data(), st.integers(0, 99))
def test_in_segments_the_gradients_are_the_same(layers, data, seed):
    torch.manual_seed(seed)
    plain = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
                            for _ in range(layers)))
    ours, x = copy.deepcopy(plain), torch.randn(5, 4)
    with one_thread():
        square(plain(x)).backward()
    train_in_segments(ours, data.draw(st.integers(1, layers)), x, square, Device('cpu'))
    for (name, one), other in zip(plain.named_parameters(), ours.parameters()):
        assert torch.equal(one.grad, other.grad), name
    assert all(map(torch.equal, plain.buffers(), ours.buffers()))


@given(st.integers(1, 8), st.integers(1, 8))
def test_k_segments_keep_k_inputs_and_one_segment(k, each):
    """k + n / k activations, but for those that come and go (the law has no constants)."""
    device, x = Device('cpu'), torch.randn(100)
    device.meter().adopt([x])
    device.ledger.reset_peak()
    before = device.ledger.allocated
    train_in_segments(nn.Sequential(*(nn.Tanh() for _ in range(k * each))), k, x.requires_grad_(), square, device)
    assert k + each - 2 <= (device.ledger.peak - before) / x.nbytes <= k + each + 4


def test_the_root_of_the_layers_is_the_best_number_of_segments():
    torch.manual_seed(0)
    module, device = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(36))), Device('cpu')
    costs = compare(module, torch.randn(500, 8), square, device)
    peaks = {name: cost.peak for name, cost in costs.items()}
    assert min(peaks, key=peaks.get) in ('recompute, 6 segments', 'offload')
    assert peaks['recompute, 6 segments'] < min(peaks['plain'], peaks['recompute, 36 segments'])
    assert peaks['offload'] < peaks['plain'] / 3


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match='into 1 to 2 segments, not 3'):
        train_in_segments(nn.Sequential(nn.Tanh(), nn.Tanh()), 3, torch.ones(2), square, Device('cpu'))
    model = nn.Linear(2, 2)
    with offloading_activations(Device('cpu'), model.parameters()):
        loss = square(model(torch.ones(1, 2)))
    with pytest.raises(RuntimeError, match='call backward inside'):
        loss.backward()


@given(st.integers(0, 3), st.integers(1, 50))
def test_what_is_changed_in_place_afterwards_counts_as_it_was_saved(ahead, size):
    t, weights = torch.linspace(-2, 2, size, requires_grad=True), torch.linspace(1, 3, size)
    with one_thread(), offloading_activations(Device('cpu'), ahead=ahead):
        s = torch.sigmoid(t)
        loss = (s.mul_(3) * weights).sum()   # the backward of sigmoid reads its result
        loss.backward()
    saved = torch.sigmoid(t.detach())
    torch.testing.assert_close(t.grad, 3 * weights * saved * (1 - saved))


def test_nothing_is_kept_of_graphs_that_are_gone():
    model, x, alive = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(4, 8), []
    with one_thread(), offloading_activations(Device('cpu'), model.parameters()):
        for _ in range(4):
            model(x).sum().backward()
            gc.collect()
            alive.append(sum(type(thing) is torch.Tensor for thing in gc.get_objects()))
    assert alive[-1] <= alive[1]


def test_a_negative_number_of_tensors_on_their_way_is_refused():
    with pytest.raises(ValueError, match='at least 0'), offloading_activations(Device('cpu'), ahead=-1):
        pass


@given(st.integers(0, 2), st.booleans())
def test_a_parameter_changed_before_the_backward_is_refused_where_autograd_refuses(layer, offloads):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    within = offloading_activations(Device('cpu'), model.parameters()) if offloads else contextlib.nullcontext()
    changed = [model[0], model[2], model[3]][layer].weight
    with one_thread(), within:
        loss = square(model(torch.ones(4, 3)))
        with torch.no_grad():
            changed += 1.0
        if layer == 0:   # its input needs no gradient: nobody reads the weight again
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match='in place after the forward|modified by an inplace operation'):
                loss.backward()
