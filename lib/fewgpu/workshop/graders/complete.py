"""Nothing may be left on the wires of practice ranks."""

from collections.abc import Sequence

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.practice.misuse import Misuse
from fewgpu.workshop.practice.ranks import Run


def verify_complete(run: Run, lines: Sequence[Line]) -> None:
    """As the run's own, but raises `Failure`, with the lines where to look."""
    try:
        run.verify_complete()
    except Misuse as error:
        raise Failure(error.detail, misconception=error.misconception, lines=lines) from None
