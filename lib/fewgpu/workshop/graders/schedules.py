"""Rows that learners write against their laws, of which many rows may be right, and what goes wrong in all of them."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fewgpu.workshop.grading.law import Law, Like, Suspect, judge, shown
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.practice.rows import (CELL, UNITS, Rows, Sizes, are_lists, are_rows, as_text, broken,
                                           can_be_timed, cut, makespan, micro_batch, picture, plain_rows, svg)

Sentence = Callable[[Sizes, Any], str]   # what is wrong with rows of these sizes; '' if nothing is

MISREAD = {
    'from-one': 'stages or micro-batches are counted from 1, and the first of each is number 0',
    'one-row': 'it is a single row, and has to be a list with one row for each stage',
    'transposed': 'rows and columns are exchanged: a row is what one stage runs, from its first to its last operation',
    'spelling': 'the operations are not written as the docstring asks, so nobody can tell what they are',
    'idle-entries': 'idle time is written down: a row is an order, and a stage waits by itself until its input is '
                    'there',
}


def sizes_to_try(random: Random) -> list[Sizes]:
    """Stages and micro-batches, fewest first: all small ones, and some large."""
    small = sorted(((n, m) for n in range(1, 6) for m in range(1, 8)), key=lambda sizes: (sum(sizes), sizes))
    return small + [(random.randrange(2, 10), random.randrange(1, 25)) for _ in range(6)]


def like(misconception: str, fits: Callable[[Any, int, int], Any], *, readable: bool = True) -> Suspect:
    """`fits(rows, stages, micro_batches)` knows such rows; where they must be `readable`, it is asked of such alone."""
    return Suspect(misconception, lambda sizes: Like(
        lambda rows: (not readable or are_rows(rows) and bool(rows)) and bool(fits(rows, *sizes))))


def misread(wrong: Sentence) -> list[Suspect]:
    """Those of MISREAD: right by the law `wrong`, but not in the form that was asked for."""
    def without_idle(rows: Any, n: int, m: int) -> bool:
        busy = [[cell for cell in row if any(letter.isdigit() for letter in str(cell))] for row in rows]
        return busy != rows and not wrong((n, m), busy)

    return [
        like('one-row', lambda rows, n, m: _is_one_row(rows), readable=False),
        like('one-row', lambda rows, n, m: len(rows) == 1 and not wrong((1, m), rows)),
        like('transposed', lambda rows, n, m: not wrong((n, m), [*map(list, zip(*rows, strict=True))])),
        like('from-one', lambda rows, n, m: all({*map(micro_batch, row)} == {*range(1, m + 1)} for row in rows)),
        like('idle-entries', without_idle, readable=False),
        like('spelling', lambda rows, n, m: are_lists(rows) and not are_rows(rows) and len(rows) == n and all(
            len(row) == 2 * m for row in rows), readable=False),
    ]


def _is_one_row(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(
        isinstance(cell, str) and CELL.fullmatch(cell) for cell in rows)


def least_makespan(sizes: Sizes) -> float:
    """(n-1) F until the last stage starts, m (F+B) there, (n-1) B back."""
    return (sum(sizes) - 1) * sum(UNITS.values())


def slow(sizes: Sizes, rows: Any) -> str:
    """The law of time."""
    if found := broken(sizes, rows):
        return found
    takes, least = makespan(rows), least_makespan(sizes)
    return f'The step takes {takes:g} units of time, and {least:g} are enough.' if takes > least else ''


def judge_rows(name: str, answer: Callable[[int, int], Any], random: Random, wrong: Sentence, *,
               suspects: Sequence[Suspect], expected: Callable[[Sizes], Rows], lines: Sequence[Line]) -> None:
    """`judge` for a function `name(stages, micro_batches)` that returns rows, of which many may be right.

    A failure carries the sentence of `wrong` and a picture; beside it one right answer is shown, `expected(sizes)`.
    """
    def called(sizes: Sizes) -> str:
        return f'{name}({sizes[0]}, {sizes[1]})'

    def why(sizes: Sizes, rows: Any, law: Law) -> str:
        return '' if _is_one_row(rows) else law.broken(rows)   # a misconception: its sentence says it all

    def tell(sizes: Sizes, got: Any, _: Law) -> str:
        yours = as_text(got) if are_lists(got) and got else [shown(got)]
        texts = _headed('yours', yours) + _headed('expected' if sizes[1] == 1 else 'such as', as_text(expected(sizes)))
        return '\n'.join([called(sizes), *map(cut, texts)])

    judge(sizes_to_try(random), lambda sizes: plain_rows(answer(*sizes)),
          lambda sizes: Law(lambda rows: wrong(sizes, rows)), suspects=suspects, tell=tell, lines=lines,
          why=why, picture=lambda sizes, rows, _: picture(rows) if can_be_timed(rows) else '',
          svg=lambda sizes, rows, _: svg(rows, called(sizes)))


def _headed(head: str, lines: list[str]) -> list[str]:
    return [f'{head if number == 0 else "":<10}{line}'.rstrip() for number, line in enumerate(lines)]
