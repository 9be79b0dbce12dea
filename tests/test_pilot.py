"""The pilot run: its shards fit, no larger ones would, and the model does not notice."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu.device import Device
from fewgpu.link import bytes_in
from fewgpu.pilot import shards_that_fit
from fewgpu.spill import Spilled
from tests.networks import cases, seeded
from tests.reference import differences, state
from tests.test_spill import Breaks, mean_square


@st.composite
def networks(draw):
    """(a model of linear layers of different widths, input, target)."""
    widths = draw(st.lists(st.sampled_from([4, 8, 16, 32]), min_size=2, max_size=8))
    rows = draw(st.integers(1, 6))
    layers = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers), torch.randn(rows, widths[0]), torch.randn(rows, widths[-1])


limits, buffers = st.integers(2_000, 60_000), st.sampled_from([0, 0.2, 0.4, 1000])


def cut(network, limit, buffer, on_host):
    model, x, y = network
    return shards_that_fit(model, x, y, mean_square, Device(memory_limit=limit), double_buffer=buffer,
                           inputs_on_host=on_host)


@settings(max_examples=60)
@given(networks(), limits, buffers, st.booleans())
def test_the_shards_train_within_the_limit_or_a_layer_is_named(network, limit, buffer, on_host):
    model, x, y = network
    try:
        balance = cut(network, limit, buffer, on_host)
    except ValueError as error:
        assert 'does not fit CPU 0 by itself' in str(error)
        reserved = int(buffer if buffer >= 1 else buffer * limit)
        if not any(2 * bytes_in(list(layer.parameters())) > reserved > 0 for layer in model):
            with pytest.raises(torch.OutOfMemoryError):   # with shards of one layer
                train(network, [1] * len(model), limit - reserved, on_host, prefetch=False)
        return
    assert sum(balance) == len(model) and min(balance) > 0
    for prefetch in {False, buffer > 0}:
        device = Device(memory_limit=limit)
        Spilled(model, balance, device=device, loss_fn=mean_square, prefetch=prefetch,
                inputs_on_host=on_host).step(x, y)
        assert device.ledger.peak <= limit


def train(network, balance, limit, on_host, prefetch):
    model, x, y = network
    Spilled(model, balance, device=Device(memory_limit=limit), loss_fn=mean_square, prefetch=prefetch,
            inputs_on_host=on_host).step(x, y)


@settings(max_examples=60)
@given(networks(), limits, st.booleans())
def test_no_shard_could_take_one_more_layer(network, limit, on_host):
    try:
        balance = cut(network, limit, 0, on_host)
    except ValueError:
        return
    for s in range(len(balance) - 1):
        larger = [*balance[:s], balance[s] + 1, balance[s + 1] - 1, *balance[s + 2:]]
        with pytest.raises(torch.OutOfMemoryError):
            train(network, [layers for layers in larger if layers], limit, on_host, prefetch=False)


@given(cases(chunks=1, inputs_need_gradient=False), st.integers(3_000, 100_000), st.booleans())
def test_the_model_and_the_generators_are_as_before(case, limit, on_host):
    model = case.model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    before = state(model), [p.grad for p in model.parameters()], [part.training for part in model.modules()]
    device = Device(memory_limit=limit)
    with seeded(3):
        drawn = torch.get_rng_state()
        try:
            shards_that_fit(model, case.inputs(), torch.zeros(case.rows), lambda outputs, _: case.loss(outputs),
                            device, inputs_on_host=on_host)
        except (ValueError, TypeError) as error:
            assert 'by itself' in str(error) or 'loss_fn returns' in str(error)
        assert torch.equal(torch.get_rng_state(), drawn)
    after = state(model), [p.grad for p in model.parameters()], [part.training for part in model.modules()]
    assert differences(after, before) == []
    assert device.ledger.peak == 0


def test_what_cannot_be_tried_is_refused():
    model, x, y = nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4), torch.ones(2, 4)
    with pytest.raises(ValueError, match='needs a limit'):
        shards_that_fit(model, x, y, mean_square, Device())
    for wrong in (1.0, -1, 5000):
        with pytest.raises(ValueError, match='double buffer is a part'):
            shards_that_fit(model, x, y, mean_square, Device(memory_limit=5000), double_buffer=wrong)
    with pytest.raises(TypeError, match='nn.Sequential'):
        shards_that_fit(nn.Linear(4, 4), x, y, mean_square, Device(memory_limit=5000))
    with pytest.raises(ArithmeticError) as caught:
        shards_that_fit(nn.Sequential(*model, Breaks('F')), x, y, mean_square, Device(memory_limit=5000))
    assert 'in a pilot run of layers 1 to 1' in caught.value.__notes__
