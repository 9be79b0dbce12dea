"""What torch complains of, and the misconception that is behind it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.work import Work


@contextmanager
def explained(work: Work, complaints: Mapping[str, str]) -> Iterator[None]:
    """Inside, an error of torch in which one of these texts stands is a Failure, of the misconception behind it."""
    try:
        yield
    except RuntimeError as error:
        for text, misconception in complaints.items():
            if text in str(error):
                raise Failure(f'(torch says: {str(error).splitlines()[0]})', misconception=misconception,
                              lines=work.lines(error.__traceback__)) from error
        raise
