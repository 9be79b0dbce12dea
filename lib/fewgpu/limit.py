"""Time limits: every wait for another thread, process or rank has one."""

import threading
from numbers import Real
from typing import Any


def verify_time_limit(seconds: Any) -> None:
    """Raises TypeError for what is no number, ValueError for one that nothing can wait for."""
    if not isinstance(seconds, Real) or isinstance(seconds, bool):
        raise TypeError(f'a time limit is a number of seconds, not {seconds!r}')
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ValueError(f'a time limit is above 0 seconds and at most {threading.TIMEOUT_MAX:.0f}, not {seconds}')
