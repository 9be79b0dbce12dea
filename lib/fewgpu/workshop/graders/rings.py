"""What the checks of exercise 02 share: ranks that add up tensors, their answers judged, and what is wrong in words."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from fewgpu.workshop.graders.complete import verify_complete
from fewgpu.workshop.graders.ring_shares import explain
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import Suspect, equal, judge, shown
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.misuse import Deadlock
from fewgpu.workshop.practice.ranks import Run, run_ranks


Case = tuple[int, int, torch.dtype]   # ranks, numbers in the tensor, and their dtype


def tensors(size: int, length: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """One a rank, with values that say whose they are: rank 1 has [10, 20, 30]."""
    return [torch.arange(1, length + 1, dtype=dtype) * 10**rank for rank in range(size)]


def run(function: Callable, arguments: Sequence[object], **network: float) -> Run:
    """As `run_ranks`; lets messages be lost (verify_complete), and names a deadlock in which nothing was sent."""
    try:
        return run_ranks(function, arguments, strict=False, **network)
    except Deadlock as failure:
        if not failure.sent:
            failure.misconception = 'receives-first'
        raise


def listed(answer: object) -> object:
    """A list, of whatever goes for one. On a rank, so that a generator communicates while the others do."""
    return list(answer) if isinstance(answer, tuple) or hasattr(answer, '__next__') else answer


def cases_of(random: Random) -> list[Case]:
    """The smallest first."""
    cases = [(2, 2), (2, 3), (3, 3), (1, 2), (3, 5), (3, 2), (4, 4), (4, 6), (5, 8),
             *((random.randrange(4, 8), random.randrange(1, 30)) for _ in range(4))]
    return [*((*case, torch.float64) for case in cases), (2, 2, torch.int64), (3, 5, torch.int64)]


def judged(work: Work, name: str, random: Random, arguments: Callable[[list[torch.Tensor]], list[Any]],
           truth: Callable[[int, list[torch.Tensor]], list[Any]], suspects: dict[str, list[Callable]],
           reduce: Callable[[list[torch.Tensor]], list[torch.Tensor]] | None = None) -> None:
    """Judge a function of all ranks. `arguments` makes the arguments of every rank of all ranks' tensors; `truth`, and
    every suspect, is given (size, tensors) and returns the answers of all ranks; `reduce` is for `explain`."""
    runs: list[Run] = []

    def answer(case: Case) -> list[Any]:
        runs.append(run(lambda given, rank: listed(getattr(work, name)(given, rank)),
                        [(each,) for each in arguments(tensors(*case))]))
        return runs[-1].results

    def predicted(function: Callable) -> Callable[[Case], list[Any]]:
        return lambda case: function(case[0], tensors(*case))

    def tell(case: Case, got: Any, wanted: list[Any]) -> str:
        given = arguments(tensors(*case))
        told = f'{name} on {case[0]} rank{"s" if case[0] > 1 else ""}: '
        told += shown('; '.join(map(shown, given)), 56 - len(name))
        if isinstance(got, BaseException):
            return told
        first = next(rank for rank in range(case[0]) if not equal(got[rank], wanted[rank]))
        told += f'\nyours     on rank {first}: {_told(got[first])}\nexpected  on rank {first}: {_told(wanted[first])}'
        why = explain(reduce, *case[:2])[0] if reduce else ''
        return told + (f'\n({why})' if why else '')

    getattr(work, name)   # raises if it is missing or empty
    predictions = {'returns-nothing': [lambda size, tensors: [None] * size], **suspects}
    judge(cases_of(random), answer, predicted(truth), tell=tell, lines=work.definition(name),
          picture=lambda case, got, wanted: explain(reduce, *case[:2])[1] if reduce and name == 'all_reduce' else '',
          suspects=[Suspect(misconception, predicted(function)) for misconception, functions in predictions.items()
                    for function in functions])
    for each in runs:
        verify_complete(each, work.definition(name))


def _told(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else value
    dtype = f' ({first.dtype})' if isinstance(first, torch.Tensor) and first.dtype != torch.float64 else ''
    return shown(value, 55 - len(dtype)) + dtype


def verify_untouched(work: Work, name: str, arguments: Callable[[list[torch.Tensor]], list[Any]]) -> None:
    """Raise `Failure` if a function changes its argument."""
    before, after = (arguments(tensors(3, 5)) for _ in range(2))
    given = [list(each) if isinstance(each, list) else each for each in after]
    run(lambda given, rank: getattr(work, name)(given, rank), [(each,) for each in after])
    for rank, (was, now) in enumerate(zip(before, after)):
        if not equal(now, was):
            raise Failure(misconception='changes-list' if equal(given[rank], was) else 'changes-input',
                          lines=work.definition(name),
                          case=f'{name} on {len(before)} ranks: the argument of rank {rank}\n'
                               f'before    {shown(was)}\nafter     {shown(now)}')
