"""Answers against the truth, and which misconception would explain them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fewgpu.workshop.grading.forbid import HandedBack, StartsProcess
from fewgpu.workshop.grading.grader import Failure, InCase, first_line
from fewgpu.workshop.grading.plain import Lies, is_trusted, plain
from fewgpu.workshop.grading.verdict import Line

Case = Any


@dataclass(frozen=True)
class Suspect:
    """A misconception, and the answer that it would give in a case.

    `answer(case)` returns that answer, or raises whatever the learner's code would raise (any exception stands for any
    other).
    """

    misconception: str
    answer: Callable[[Case], Any]


@dataclass(frozen=True)
class Law:
    """What stands for the truth where there are many right answers: `broken` says what is wrong, '' if nothing is."""

    broken: Callable[[Any], str]


@dataclass(frozen=True)
class Like:
    """What a suspect answers where a misconception has many looks: `fits` tells whether this is one of them."""

    fits: Callable[[Any], bool]


def judge(cases: Iterable[Case], answer: Callable[[Case], Any], truth: Callable[[Case], Any], *,
          suspects: Sequence[Suspect] = (), same: Callable[[Any, Any], bool] | None = None,
          tell: Callable[[Case, Any, Any], str] | None = None, why: Callable[[Case, Any, Any], str] | None = None,
          picture: Callable[[Case, Any, Any], str] | None = None, svg: Callable[[Case, Any, Any], str] | None = None,
          lines: Sequence[Line] = ()) -> None:
    """Raise `Failure` unless the learner's answer is the truth in all cases.

    Cases come smallest first: the first that fails is the one that is shown, by `tell(case, answer, truth)` and, as
    drawings, by `picture` and `svg`. `why` says in a sentence what is wrong with the answer, for the failure's message;
    it is not asked where there is none, because the code raised or returned None.

    The misconception is the first suspect that would have given the learner's answers in every case, and if there is
    none, the first that explains all those that fail. Where no suspect does and the learner's code raised, its
    exception is what is reported.

    `same` compares two answers (default: `equal`, and what `Law` and `Like` say). `lines` is where to look when no
    line raised.
    """
    same = same or alike
    given: list[tuple[Case, Any, Any, bool]] = []
    for case in cases:
        wanted = truth(case)
        got = attempt(answer, case)
        given.append((case, got, wanted, not isinstance(got, BaseException) and same(got, wanted)))
    wrong = [each for each in given if not each[3]]
    if not wrong:
        return
    case, got, wanted, _ = wrong[0]
    named = _suspected(suspects, given, same) or _suspected(suspects, wrong, same)
    shown_case = (tell(case, got, wanted) if tell else
                  f'case      {shown(case)}\nyours     {shown(got)}\nexpected  {shown(wanted)}')
    if isinstance(got, BaseException):
        raise InCase(got, shown_case, named)
    if not named and (got is None or isinstance(got, list) and got and all(part is None for part in got)):
        named = 'returns-nothing'   # also where it is asked of every rank
    raise Failure(why(case, got, wanted) if why and got is not None else '', misconception=named, case=shown_case,
                  picture=picture(case, got, wanted) if picture else '', svg=svg(case, got, wanted) if svg else '',
                  lines=lines)


def attempt(answer: Callable[[Case], Any], case: Case) -> Any:
    """The learner's answer, as `plain` values, or the exception that came instead of it."""
    try:
        return plain(answer(case))
    except Lies as lie:
        raise Failure(f'The answer is {lie}.', misconception='tampers') from None
    except (HandedBack, StartsProcess):
        raise
    except Failure as failure:
        if failure.misconception in ('unsolved', 'missing-function', 'tampers'):
            raise
        return failure
    except Exception as error:
        return error


def _suspected(suspects: Sequence[Suspect], given: Sequence[tuple[Case, Any, Any, bool]],
               same: Callable[[Any, Any], bool]) -> str:
    for suspect in suspects:
        if all(_explains(suspect, case, got, same) for case, got, *_ in given):
            return suspect.misconception
    return ''


def _explains(suspect: Suspect, case: Case, got: Any, same: Callable[[Any, Any], bool]) -> bool:
    try:
        predicted = suspect.answer(case)
    except Exception:
        return isinstance(got, BaseException)
    return not isinstance(got, BaseException) and same(got, predicted)


def alike(one: Any, other: Any) -> bool:
    """As `equal`; the other may be a `Law` or a `Like`."""
    if isinstance(other, Law):
        return not other.broken(one)
    if isinstance(other, Like):
        try:
            return bool(other.fits(one))
        except (TypeError, ValueError, AttributeError, LookupError):   # it is of quite another type
            return False
    return equal(one, other)


def equal(one: Any, other: Any) -> bool:
    """Equal values: tensors to the bit and of one dtype; sequences element by element, a list like a tuple."""
    if isinstance(other, torch.Tensor):
        return (isinstance(one, torch.Tensor) and is_trusted(one) and one.dtype == other.dtype
                and torch.equal(one, other))
    if isinstance(other, (list, tuple)):
        return (isinstance(one, (list, tuple)) and len(one) == len(other)
                and all(equal(a, b) for a, b in zip(one, other)))
    if isinstance(one, torch.Tensor) or type(one).__name__ == 'ndarray' or not is_trusted(one):
        return False
    return bool(one == other)


def close(one: Any, other: Any, *, tolerance: float = 1e-9) -> bool:
    """As `equal`, but numbers may differ by rounding: `tolerance` times the largest of them. Graders take float64."""
    if isinstance(other, torch.Tensor):
        if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        largest = float(other.abs().max()) if other.numel() else 0.0
        return bool(((one - other).abs() <= tolerance * max(largest, 1.0)).all())
    if isinstance(other, float):
        return isinstance(one, (int, float)) and abs(one - other) <= tolerance * max(abs(other), 1.0)
    if isinstance(other, (list, tuple)):
        return (isinstance(one, (list, tuple)) and len(one) == len(other)
                and all(close(a, b, tolerance=tolerance) for a, b in zip(one, other)))
    return equal(one, other)


def shown(value: Any, most: int = 60) -> str:
    """A value as one short line."""
    if isinstance(value, BaseException):
        text = first_line(value)
    elif isinstance(value, torch.Tensor) and value.dim() == 0:
        text = f'{value.item():g}' if value.is_floating_point() else str(value.item())
    elif isinstance(value, torch.Tensor):
        numbers = value.detach().flatten()[:8].tolist()
        listed = ', '.join(f'{number:g}' if isinstance(number, float) else str(number) for number in numbers)
        more = ', ...' if value.numel() > 8 else ''
        text = f'[{listed}{more}]' + (f' of shape {tuple(value.shape)}' if value.dim() != 1 else '')
    elif isinstance(value, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in value):
        text = ' | '.join(shown(part) for part in value)
    else:
        text = str(value).partition('\n')[0]
    return text if len(text) <= most else text[:most - 4] + ' ...'
