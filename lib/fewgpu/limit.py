"""Time limits: every wait for another thread, process or rank has one."""

from numbers import Real
from typing import Any

_MOST = 10**9   # seconds, thirty years: gloo adds a limit to the clock, in nanoseconds of 64 bits; 9e9 s overflow


def verify_time_limit(seconds: Any) -> None:
    """Raises TypeError for what is no number, ValueError for one that nothing can wait for."""
    if not isinstance(seconds, Real) or isinstance(seconds, bool):
        raise TypeError(f'a time limit is a number of seconds, not {seconds!r}')
    if not 0 < seconds <= _MOST:
        raise ValueError(f'a time limit is above 0 seconds and at most {_MOST}, not {seconds}')
