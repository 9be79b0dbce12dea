"""A profiled chain has the bytes that can be counted by hand, and the planners take it as it is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu.planner import Machines, partition
from fewgpu.planner.profiled import profile


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 7))
def test_its_bytes_are_those_of_the_layers(widths, rows):
    model = nn.Sequential(*[nn.Linear(a, b) for a, b in zip(widths, widths[1:])])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    chain = profile(model, torch.rand(rows, widths[0]), timeout=0.0, device='cpu')
    assert [layer.weight_bytes for layer in chain.layers] == [
        4 * (a * b + b) for a, b in zip(widths, widths[1:])]
    assert [layer.output_bytes for layer in chain.layers] == [4 * rows * width for width in widths[1:]]
    assert all(layer.seconds > 0 for layer in chain.layers)
    assert [layer.name for layer in chain.layers] == [name for name, _ in model.named_children()]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert sum(partition(chain, Machines(3, 1e9)).balance) == len(model)


def test_a_layer_used_twice_counts_twice():
    layer = nn.Linear(3, 3)
    chain = profile(nn.Sequential(layer, layer), torch.rand(2, 3), timeout=0.0, device='cpu')
    assert len(chain) == 2


def test_what_is_no_sequence_of_layers_is_refused():
    with pytest.raises(TypeError, match='nn.Sequential'):
        profile(nn.Linear(3, 3), torch.rand(2, 3))
