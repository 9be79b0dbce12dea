"""Whatever a stage may hand to the next survives the wire: values, types, shapes, order in memory."""

import math
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from fewgpu.schedule import Message, activation
from fewgpu.transport.wire import HEAD, decode, encode

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8,
          torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.complex64,
          torch.complex128, torch.float8_e4m3fn)
Pair = namedtuple('Pair', 'first second')


@st.composite
def tensors(draw) -> torch.Tensor:
    """Of any type and shape; permuted, cut out, expanded or conjugated; small and larger than a head."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    if draw(st.booleans()):
        shape = [HEAD // 2, *shape[:1]]
    tensor = torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)
    if tensor.dim():
        change = draw(st.sampled_from(('', 'permute', 'narrow', 'expand', 'conjugate')))
        if change == 'permute':
            tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
        if change == 'narrow' and tensor.shape[0] > 1:
            tensor = tensor[1::2]
        if change == 'expand':
            tensor = tensor[None].expand(3, *tensor.shape)
        if change == 'conjugate' and dtype.is_complex:
            tensor = (tensor * 1j).conj()
    differentiable = dtype.is_floating_point or dtype.is_complex
    return tensor.requires_grad_(differentiable and draw(st.booleans()))


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text())
KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.tuples(st.integers(), st.text()))
VALUES = st.recursive(st.one_of(tensors(), NUMBERS), lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple),
    st.dictionaries(KEYS, inner, max_size=4)), max_leaves=8)


def over_the_wire(value: Any, step: int = 1, message: Message = activation(1, 0)) -> Any:
    head, *parts = encode(step, message, value)
    assert head.dtype == torch.uint8 and head.shape == (HEAD,)

    def receive(into: list[torch.Tensor]) -> None:
        for tensor in into:
            part = parts.pop(0)
            assert (tensor.dtype, tensor.shape) == (part.dtype, part.shape)
            assert tensor.is_contiguous() and part.is_contiguous()   # as gloo wants them
            tensor.copy_(part)

    buffer = head.clone()
    decoded = decode(buffer, receive)
    buffer.zero_()   # the next head goes there
    assert not parts and decoded[:2] == (step, message)
    return decoded[2]


def octets(tensor: torch.Tensor) -> torch.Tensor:
    # A copy: one element may have any stride and still count as contiguous, and cannot be viewed as bytes.
    return tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def same(sent: Any, got: Any) -> bool:
    if type(sent) is not type(got):
        return False
    if isinstance(sent, torch.Tensor):
        return (sent.dtype == got.dtype and sent.shape == got.shape
                and sent.requires_grad == got.requires_grad and got.is_leaf
                and octets(sent).equal(octets(got)))
    if isinstance(sent, (tuple, list)):
        return len(sent) == len(got) and all(map(same, sent, got))
    if isinstance(sent, dict):
        return list(sent) == list(got) and all(same(sent[key], got[key]) for key in sent)
    return repr(sent) == repr(got)   # NaN, and -0.0


@given(value=VALUES, step=st.integers(0, 2**62), what=st.text(max_size=20),
       numbers=st.tuples(*[st.integers(-1, 2**31 - 1)] * 3))
def test_any_nesting_arrives_as_it_left(value: Any, step: int, what: str, numbers: tuple) -> None:
    assert same(value, over_the_wire(value, step, Message(what, *numbers)))


@given(value=tensors())
def test_a_dense_tensor_keeps_its_order_in_memory(value: torch.Tensor) -> None:
    got = over_the_wire(value)
    dense = sorted(zip(value.stride(), value.shape))
    if value.numel() and math.prod(s for s in value.shape) == 1 + sum(
            stride * (size - 1) for stride, size in dense) and 0 not in value.stride():
        assert [stride for stride, size in zip(got.stride(), got.shape) if size > 1] == [
            stride for stride, size in zip(value.stride(), value.shape) if size > 1]


@given(count=st.integers(0, 3000))
def test_a_structure_longer_than_the_head_follows_it(count: int) -> None:
    value = [torch.full((2,), float(k)) for k in range(count)]
    sent = encode(1, activation(1, 0), value)
    assert same(value, over_the_wire(value))
    if count < 100:
        assert len(sent) == 1   # small tensors ride in the head


def test_what_arrives_shares_no_memory_with_what_was_sent() -> None:
    value = [torch.ones(2), torch.ones(HEAD)]
    got = over_the_wire(value)
    for tensor in value:
        tensor.zero_()
    assert all(tensor.all() for tensor in got)


@pytest.mark.parametrize('value, name', [
    ({1, 2}, 'builtins.set'), (Pair(1, 2), 'Pair'), (OrderedDict(a=1), 'OrderedDict'),
    (object(), 'builtins.object'), ([{'a': (None, b'bytes')}], 'builtins.bytes'),
    (torch.ones(2, 2).to_sparse(), 'sparse'),
    (torch.float32, 'torch.dtype'),
])
def test_anything_else_is_refused_with_its_type_and_the_remedy(value: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name) as caught:
        encode(1, activation(1, 0), value)
    assert 'let the layer return' in str(caught.value) and '\n' not in str(caught.value)
