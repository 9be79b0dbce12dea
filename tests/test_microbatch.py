"""Laws of cutting a mini-batch, and of putting it together again."""

import re
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils import _pytree as pytree

from fewgpu.microbatch import gather, named_leaves, rows_of, scatter, sizes
from tests.reference import differences

Pair = namedtuple('Pair', 'left right')
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
PASSED = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)


def tensors(rows: int) -> st.SearchStrategy[torch.Tensor]:
    """Any dtype, any shape with `rows` rows, also one that is not contiguous."""
    def make(dtype: torch.dtype, shape: list[int], how: int) -> torch.Tensor:
        tensor = torch.arange(rows * 16).remainder(7)[:rows].view(rows, *[1] * len(shape))
        tensor = tensor.expand(rows, *shape).to(dtype)   # expanded: strides of 0
        return [tensor, tensor.contiguous(), tensor.contiguous().flip(0)][how]
    return st.builds(make, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3),
                     st.integers(0, 2))


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, Any]:
    """The number of rows, and a nesting in which at least one tensor has them."""
    rows = draw(st.integers(0, 9))
    leaf = tensors(rows) | PASSED
    nesting = st.recursive(leaf, lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from('abc'), inner, max_size=3),
        st.dictionaries(st.sampled_from('abc'), inner, max_size=3).map(OrderedDict)), max_leaves=6)
    return rows, draw(st.one_of(tensors(rows), st.tuples(tensors(rows), nesting),
                                st.fixed_dictionaries({'x': nesting, 'y': tensors(rows)})))


@given(st.integers(0, 60), st.integers(1, 60))
def test_sizes_sum_to_the_rows_differ_by_one_at_most_and_none_is_empty(
        rows: int, chunks: int) -> None:
    cut = sizes(rows, chunks)
    assert sum(cut) == rows
    assert max(cut) - min(cut) <= 1
    assert len(cut) == max(1, min(rows, chunks))   # 5 rows in 4 chunks are 4 micro-batches
    assert min(cut) > 0 or rows == 0


@given(batches(), st.integers(1, 12))
def test_gather_undoes_scatter(batch: tuple[int, Any], chunks: int) -> None:
    rows, value = batch
    micro_batches = scatter(value, chunks)
    assert rows_of(value) == rows
    assert len(micro_batches) == len(sizes(rows, chunks))
    assert not differences(gather(micro_batches), value)


@given(batches(), st.integers(1, 12))
def test_every_micro_batch_has_the_structure_of_the_whole(batch: tuple[int, Any],
                                                          chunks: int) -> None:
    rows, value = batch
    for count, micro_batch in zip(sizes(rows, chunks), scatter(value, chunks)):
        assert pytree.tree_structure(micro_batch) == pytree.tree_structure(value)
        for part, whole in zip(pytree.tree_leaves(micro_batch), pytree.tree_leaves(value)):
            if isinstance(whole, torch.Tensor):
                assert part.shape == (count, *whole.shape[1:]) and part.dtype == whole.dtype
            else:
                assert part is whole


@given(batches(), st.integers(1, 12))
def test_scatter_copies_no_data(batch: tuple[int, Any], chunks: int) -> None:
    _, value = batch
    for micro_batch in scatter(value, chunks):
        for part, whole in zip(pytree.tree_leaves(micro_batch), pytree.tree_leaves(value)):
            if isinstance(whole, torch.Tensor):
                assert part.untyped_storage()._cdata == whole.untyped_storage()._cdata


@given(st.integers(1, 9), st.integers(1, 9))
def test_what_has_no_rows_reaches_every_micro_batch(rows: int, chunks: int) -> None:
    point = torch.tensor(2.5)
    value = (torch.zeros(rows, 2), point, None, True, 3, {'rate': 0.5})
    for _, *rest in scatter(value, chunks):
        assert rest[0] is point and rest[1:] == [None, True, 3, {'rate': 0.5}]


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_tensors_that_disagree_about_rows_are_named(rows: int, other: int,
                                                    data: st.DataObject) -> None:
    other += other >= rows   # any other number
    where = data.draw(st.sampled_from([1, 2, 'mask']))
    value = {1: (torch.zeros(rows), torch.zeros(other)),
             2: (torch.zeros(rows), None, [torch.zeros(other)]),
             'mask': {'x': torch.zeros(rows), 'mask': torch.zeros(other)}}[where]
    name = {1: 'input[1]', 2: 'input[2][0]', 'mask': "input['mask']"}[where]
    with pytest.raises(ValueError, match=f'{re.escape(name)}.* has {other} rows .* {rows}'):
        scatter(value, 2)


@given(st.sampled_from(['text', b'bytes', object(), {1, 2}, range(3)]), st.booleans())
def test_what_cannot_be_cut_or_passed_on_is_named(stranger: Any, in_dict: bool) -> None:
    value = ({'x': torch.zeros(2), 'odd': stranger} if in_dict
             else (torch.zeros(2), [None, stranger]))
    name = "input['odd']" if in_dict else 'input[1][1]'
    with pytest.raises(TypeError, match=f'{re.escape(name)} is a {type(stranger).__name__}'):
        scatter(value, 2)


@pytest.mark.parametrize('nothing', [None, 3, (), [], {}, (None, 2.0), torch.tensor(1.0)])
def test_a_mini_batch_without_rows_to_cut_is_refused(nothing: Any) -> None:
    with pytest.raises(TypeError, match='expected Tensor'):
        scatter(nothing, 2)


@given(st.integers(2, 5))
def test_what_differs_between_micro_batches_is_refused_by_name(count: int) -> None:
    parts = [{'x': torch.zeros(1), 'n': (i,)} for i in range(count)]
    with pytest.raises(ValueError, match=re.escape("output['n'][0] differs")):
        gather(parts)
    points = [(torch.zeros(1), torch.tensor(float(i))) for i in range(count)]
    with pytest.raises(TypeError, match=re.escape('output[1] is a tensor without rows')):
        gather(points)
    with pytest.raises(ValueError, match=f'micro-batch {count - 1} has another structure'):
        gather([torch.zeros(1)] * (count - 1) + [(torch.zeros(1),)])


def test_leaves_are_named_as_one_would_write_them() -> None:
    tree = ({'mask': [1, 2]}, (3,))
    assert named_leaves(tree) == [("input[0]['mask'][0]", 1), ("input[0]['mask'][1]", 2),
                                  ('input[1][0]', 3)]
    assert named_leaves(5, 'output') == [('output', 5)]


@given(batches())
def test_one_micro_batch_is_the_mini_batch(batch: tuple[int, Any]) -> None:
    _, value = batch
    (only,) = scatter(value, 1)
    assert not differences(only, value)


def test_a_packed_sequence_is_refused_with_what_to_do() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.rand(3, 2)])
    with pytest.raises(TypeError, match='PackedSequence.*pack inside the layer'):
        scatter(packed, 2)
