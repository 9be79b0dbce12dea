"""Laws of recurrent layers, which keep lists of their parameters beside their parameters."""

import copy

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from fewgpu.recompute import Swap, parameter_slots

KINDS = {'lstm': nn.LSTM, 'gru': nn.GRU, 'rnn': nn.RNN}


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 2), st.booleans(), st.booleans(), st.integers(1, 4))
def test_a_forward_with_other_weights_leaves_the_layer_as_it_was(kind: str, layers: int, both: bool, bias: bool,
                                                                 times: int) -> None:
    layer = KINDS[kind](3, 4, layers, bias=bias, bidirectional=both)
    lists, mine = layer._flat_weights, [*layer.parameters()]
    slots = parameter_slots(layer)
    swap = Swap([(container, key) for container, key, _ in slots])
    x = torch.randn(5, 2, 3)
    for _ in range(times):
        other = copy.deepcopy(layer)
        others = [torch.randn_like(parameter) for parameter in mine]
        with torch.no_grad():
            for parameter, value in zip(other.parameters(), others):
                parameter.copy_(value)
        place = dict(zip(mine, others))
        with swap.to([place[parameter] for _, _, parameter in slots]):
            assert torch.equal(layer(x)[0], other(x)[0])
        assert layer._flat_weights is lists
        assert all(found is parameter for found, parameter in zip(lists, mine, strict=True))
        assert [parameter for _, _, parameter in parameter_slots(layer)] == mine * 3


@pytest.mark.parametrize('kind', sorted(KINDS))
def test_parameters_given_later_are_found(kind: str) -> None:
    layer = KINDS[kind](3, 4)
    layer._parameters['weight_ih_l0'] = new = nn.Parameter(torch.randn_like(layer.weight_ih_l0))
    assert sum(parameter is new for _, _, parameter in parameter_slots(layer)) == 3
