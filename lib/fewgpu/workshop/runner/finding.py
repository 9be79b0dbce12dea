"""What the doctor finds: one line, whether it is well, and what to do if it is not."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

OK, WARN, BAD = 'ok', 'warn', 'bad'
"""Well; works, but not as well as it could; something of the kit will fail."""

Answer = TypeVar('Answer')


@dataclass(frozen=True)
class Finding:
    """`remedy` is a sentence or a command; it is empty where nothing is to be done."""

    status: str
    subject: str   #: a word or two: 'GPU 0'
    says: str
    remedy: str = ''


class TookTooLong(Exception):
    """An answer did not come in time."""


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """The answer of `ask`, or its exception; raises `TookTooLong` instead of waiting longer.

    For questions that only the system can answer, and that nothing can interrupt. The thread is left to itself.
    """
    answers: list[tuple[Answer | None, BaseException | None]] = []

    def run() -> None:
        try:
            answers.append((ask(), None))
        except BaseException as error:
            answers.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise TookTooLong(f'no answer within {seconds:g} s')
    answer, error = answers[0]
    if error is not None:
        raise error
    return answer
