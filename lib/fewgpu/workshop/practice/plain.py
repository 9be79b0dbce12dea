"""What learners hand back, as plain numbers and lists: no exercise is about kinds of number and containers."""

from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral, Real
from typing import Any


def number(answer: Any) -> Any:
    """An int or a float, also of a tensor or an array of one number. What is no number stays as it is."""
    with suppress(AttributeError, TypeError, ValueError, RuntimeError):   # neither has one number
        answer = answer.item()
    if not isinstance(answer, Real) or isinstance(answer, bool):
        return answer
    return int(answer) if isinstance(answer, Integral) else float(answer)


def listed(answer: Any) -> Any:
    """A list, of whatever goes for one, its numbers plain. What is no container stays as it is."""
    if hasattr(answer, 'tolist'):
        return answer.tolist()
    if not isinstance(answer, Iterable) or isinstance(answer, (str, bytes, dict)):
        return answer
    return [number(part) for part in answer]
