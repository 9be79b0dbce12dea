"""Laws of swapping parameters and buffers for a while: afterwards all is as it was found."""

import pytest
import torch
from torch import nn

from fewgpu.recompute import Buffers, Swap, buffer_slots
from tests.reference import differences, state


def test_swaps_nest_and_put_back_what_they_found() -> None:
    box = {'a': 1, 'b': 2}
    outer, inner = Swap([(box, 'a'), (box, 'b')]), Swap([(box, 'a')])
    with outer.to([10, 20]):
        with pytest.raises(ZeroDivisionError), inner.to([100]):
            assert box == {'a': 100, 'b': 20}
            raise ZeroDivisionError
        assert box == {'a': 10, 'b': 20}
    assert box == {'a': 1, 'b': 2}


def test_buffers_are_the_same_objects_after_a_recompute() -> None:
    norm = nn.BatchNorm1d(4)
    before = [container[key] for container, key in buffer_slots(norm)]
    buffers = Buffers(norm, {})
    norm(torch.randn(3, 4))
    buffers.forget_unchanged()
    after = state(norm)
    with buffers.restored():
        assert int(norm.num_batches_tracked) == 0
        norm(torch.randn(3, 4))
    assert all(container[key] is buffer
               for (container, key), buffer in zip(buffer_slots(norm), before))
    assert not differences(state(norm), after)
