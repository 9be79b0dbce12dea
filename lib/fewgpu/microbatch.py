"""Cut a mini-batch into micro-batches, and put them together again.

A mini-batch is a tensor or any nesting of tuples, lists and dicts of tensors. Tensors are cut along
their first dimension; what has no rows (None, a number, a tensor without dimensions) is given to
every micro-batch as it is.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

PASSED_ON = (bool, int, float, complex, type(None))   # also what a stage may hand to the next


def sizes(rows: int, chunks: int) -> list[int]:
    """Rows of every micro-batch: they differ by one at most, and none is empty.

    With fewer rows than chunks there are as many micro-batches as rows (5 rows in 4 chunks are
    2, 1, 1, 1; 2 rows are 1, 1); a mini-batch without rows is one micro-batch without rows.
    """
    count = max(1, min(rows, chunks))
    return [rows // count + (i < rows % count) for i in range(count)]


def verify_chunks(chunks: int) -> int:
    """The number of chunks. Raises ValueError if it is less than 1."""
    chunks = operator.index(chunks)
    if chunks < 1:
        raise ValueError(f'a mini-batch has at least one micro-batch: chunks is {chunks}')
    return chunks


def has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def rows_of(batch: Any) -> int:
    """The number of rows of a mini-batch.

    Raises TypeError if there is no tensor with rows or something that cannot be passed on, and
    ValueError if tensors disagree about the number of rows; the message names the argument.
    """
    leaves = check_leaves(batch)
    tensors = [(name, leaf) for name, leaf in leaves if has_rows(leaf)]
    if not tensors:
        raise TypeError('expected Tensor: a mini-batch needs at least one tensor with rows to be '
                        f'cut, but got {type(batch).__name__}')
    first_name, first = tensors[0]
    for name, tensor in tensors:
        if len(tensor) != len(first):
            raise ValueError(f'{name} has {len(tensor)} rows but {first_name} has {len(first)}: '
                             f'all tensors of a mini-batch are cut along their first dimension')
    return len(first)


def rows_of_inputs(inputs: Any) -> int:
    """Of what a module is called with, and nobody cuts: those of the first tensor that has some; 1 without one."""
    return next((len(leaf) for leaf in pytree.tree_leaves(inputs) if has_rows(leaf)), 1)


def check_leaves(batch: Any, name: str = 'input') -> list[tuple[str, Any]]:
    """Every leaf with its name. Raises TypeError if one can neither be cut nor be passed on."""
    for part in pytree.tree_leaves(batch, is_leaf=lambda tree: isinstance(tree, PackedSequence)):
        if isinstance(part, PackedSequence):   # a tuple, whose rows are no samples
            raise TypeError(f'{name} has a PackedSequence, which cannot be cut into micro-batches: '
                            f'pass the padded tensor and the lengths, and pack inside the layer')
    leaves = named_leaves(batch, name)
    for place, leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PASSED_ON)):
            raise TypeError(f'expected Tensor: {place} is a {type(leaf).__name__}; a mini-batch is '
                            f'made of tensors in tuples, lists and dicts (None, numbers and bools '
                            f'are passed on to every micro-batch)')
    return leaves


def scatter(batch: Any, chunks: int) -> list[Any]:
    """The micro-batches of a mini-batch, as views of it. Raises as `rows_of` does."""
    split = sizes(rows_of(batch), chunks)
    leaves, spec = pytree.tree_flatten(batch)
    columns = [leaf.split(split) if has_rows(leaf) else (leaf,) * len(split) for leaf in leaves]
    return [pytree.tree_unflatten(list(row), spec) for row in zip(*columns)]


def gather(micro_batches: Sequence[Any]) -> Any:
    """The mini-batch of which these are the micro-batches.

    Raises TypeError for what cannot be put together, and ValueError if the micro-batches do not
    have the same structure or pass on different values.
    """
    flat = [pytree.tree_flatten(micro_batch) for micro_batch in micro_batches]
    spec = flat[0][1]
    for i, (_, other) in enumerate(flat):
        if other != spec:
            raise ValueError(f'micro-batch {i} has another structure than micro-batch 0: '
                             f'{other} against {spec}')
    names = [name for name, _ in named_leaves(micro_batches[0], 'output')]
    columns = zip(names, zip(*(leaves for leaves, _ in flat)))
    return pytree.tree_unflatten([_join(name, column) for name, column in columns], spec)


def _join(name: str, column: tuple) -> Any:
    first = column[0]
    if not isinstance(first, (torch.Tensor, *PASSED_ON)):
        raise TypeError(f'expected Tensor: {name} is a {type(first).__name__}')
    if has_rows(first):
        return torch.cat(column)
    if len(column) == 1:
        return first
    if isinstance(first, torch.Tensor):
        raise TypeError(f'{name} is a tensor without rows: which of its {len(column)} values, one a '
                        f'micro-batch, is meant? Return it with one row, as x[None]')
    if any(type(other) is not type(first) or other != first for other in column):
        raise ValueError(f'{name} differs between micro-batches ({first!r}, ...): return a tensor '
                         f'with one row a sample')
    return first


def named_leaves(tree: Any, name: str = 'input') -> list[tuple[str, Any]]:
    """Every leaf with its place: input, input[1], input['mask'][0]."""
    paths, _ = pytree.tree_flatten_with_path(tree)
    return [(name + pytree.keystr(path), leaf) for path, leaf in paths]
