"""Rows that learners write against their laws, of which many rows may be right."""

from collections.abc import Callable, Sequence
from typing import Any

from fewgpu.workshop.grading.grader import Failure, InCase
from fewgpu.workshop.grading.law import Suspect, judge, shown
from fewgpu.workshop.graders.schedules import Law, Sizes, alike, as_text, cut, picture, plain_rows, svg
from fewgpu.workshop.grading.verdict import Line


def judge_rows(name: str, answer: Callable[[int, int], Any], cases: Sequence[Sizes],
               broken: Callable[[Sizes, Any], str], *, suspects: Sequence[Suspect],
               expected: Callable[[Sizes], list[str]], lines: Sequence[Line]) -> None:
    """`judge` for a function `name(stages, micro_batches)` that returns rows, of which many may be right.

    `broken(sizes, rows)` says what is wrong with an answer. A failure carries that sentence and a picture.
    """
    first: list[tuple[Sizes, Any]] = []

    def tell(sizes: Sizes, got: Any, _: Law) -> str:
        first.append((sizes, got))
        drawn = isinstance(got, list) and got and all(isinstance(row, list) for row in got)
        yours = as_text(got) if drawn else [shown(got)]
        texts = [f'{head:<10}{line}'.rstrip() for head, line in zip(['yours'] + [''] * len(yours), yours)]
        wanted = expected(sizes)
        texts += [f'{head:<10}{line}' for head, line in zip(['expected'] + [''] * len(wanted), wanted)]
        return '\n'.join([f'{name}({sizes[0]}, {sizes[1]})', *(cut(text) for text in texts)])

    try:
        judge(cases, lambda sizes: plain_rows(answer(*sizes)), lambda sizes: Law(lambda rows: broken(sizes, rows)),
              suspects=suspects, same=alike, tell=tell, lines=lines)
    except InCase:
        raise
    except Failure as failure:
        if first:
            (stages, micro_batches), rows = first[0]
            failure.message = '' if rows is None else broken((stages, micro_batches), rows)
            failure.picture = picture(rows)
            failure.svg = svg(rows, f'{name}({stages}, {micro_batches})')
        raise
