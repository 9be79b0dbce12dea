"""What the checks of exercise 01 share: batches to cut, the truth, and how a cut goes wrong."""

from collections.abc import Callable
from numbers import Integral
from random import Random
from typing import Any

import torch

from fewgpu.workshop.grading.law import Like, Suspect, alike, equal, judge, shown
from fewgpu.workshop.grading.verdict import Line

Sizes = tuple[int, int]   # rows and chunks
GRAPH, NO_GRAPH = 'has a graph', 'has no graph'


def truth(case: Sizes) -> list[int]:
    """The rows dealt out like cards, one after the other: how many has everybody in the end?"""
    rows, chunks = case
    count = min(rows, chunks)
    return [sum(1 for row in range(rows) if row % count == chunk) for chunk in range(count)]


def sizes_to_try(random: Random) -> list[Sizes]:
    """Rows and chunks: all small ones, and some large."""
    small = [(rows, chunks) for rows in range(1, 9) for chunks in range(1, 7)]
    large = [(random.randrange(9, 300), random.randrange(1, 40)) for _ in range(30)]
    return sorted(small, key=sum) + large


def round_up(case: Sizes) -> list[int]:
    return [len(part) for part in torch.arange(case[0]).chunk(case[1])]


def spread(case: Sizes) -> list[int]:
    """Over all chunks, though there may be fewer rows."""
    rows, chunks = case
    return [rows // chunks + (chunk < rows % chunks) for chunk in range(chunks)]


def by_size(case: Sizes) -> list[int]:
    """As if `chunks` were the rows of one."""
    rows, size = case
    return [min(size, rows - start) for start in range(0, rows, size)]


def listed(answer: Any) -> Any:
    """A list, of whatever goes for one."""
    if isinstance(answer, torch.Tensor) or type(answer).__name__ == 'ndarray':
        return answer.tolist()
    return list(answer) if isinstance(answer, (tuple, list)) or hasattr(answer, '__next__') else answer


def numbers(answer: Any) -> Any:
    """A list of numbers, in whatever container: tensors of one number count as numbers."""
    answer = listed(answer)
    if not isinstance(answer, list):
        return answer
    return [part.item() if isinstance(part, torch.Tensor) and part.numel() == 1 else part for part in answer]


def same_numbers(one: Any, other: Any) -> bool:
    """As `alike`, but 2.0 is no number of rows."""
    if isinstance(other, Like):
        return alike(one, other)
    return equal(one, other) and all(isinstance(number, Integral) for number in one)


def of_another_dtype(wanted: torch.Tensor | list[torch.Tensor]) -> Like:
    """The right numbers, as far as that dtype can hold them."""
    def fits(one: Any) -> bool:
        pairs = list(zip(one, wanted, strict=True)) if isinstance(wanted, list) else [(one, wanted)]
        return (any(part.dtype != right.dtype for part, right in pairs)
                and all(torch.equal(part, right.to(part.dtype)) for part, right in pairs))
    return Like(fits)


def verify_graph(name: str, call: Callable[[torch.Tensor], Any], lines: list[Line]) -> None:
    """Raise `Failure` if gradients do not come back through what `call` makes of the rows that it is given."""
    def answer(rows: int) -> str:
        given = torch.ones(rows, 2, requires_grad=True)
        made = call(given * 1)
        total = sum(part.sum() for part in (made if isinstance(made, list) else [made]))
        if not total.requires_grad:
            return NO_GRAPH
        gradient, = torch.autograd.grad(total, given, allow_unused=True)
        return GRAPH if gradient is not None and bool((gradient == 1).all()) else NO_GRAPH

    judge([3], answer, lambda rows: GRAPH, suspects=[Suspect('no-graph', lambda rows: NO_GRAPH)], lines=lines,
          tell=lambda rows, got, wanted: f'{name}: {rows} rows that require gradients\n'
                                         f'yours     {shown(got)}\nexpected  {wanted}')
