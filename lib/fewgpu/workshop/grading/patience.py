"""How long a check may take: so many seconds of computing, however busy the machine is, or of doing nothing."""

import os
import time
from pathlib import Path

IDLE = 5.0         # seconds in which a process that computes gets at least BREATH seconds of a core
BREATH = 0.1
AT_MOST = 10       # times what is allowed, by the clock on the wall


class Patience:
    """With one process. Where the system does not tell how much that computes, the clock on the wall counts."""

    def __init__(self, process_id: int) -> None:
        self._stat = Path(f'/proc/{process_id}/stat')
        self.begin()

    def begin(self) -> None:
        """Something new begins."""
        self._began = self._breathed = time.monotonic()
        self._computed_before = self._computed_at_breath = self._computed() or 0.0

    def is_over(self, allowed: float) -> bool:
        """Has it computed for more than `allowed` seconds, or waited as long, with nothing to do at the end?"""
        now, computed = time.monotonic(), self._computed()
        took = now - self._began
        if computed is None:
            return took > allowed
        if computed - self._computed_at_breath >= BREATH:
            self._breathed, self._computed_at_breath = now, computed
        is_idle = now - self._breathed > IDLE
        return computed - self._computed_before > allowed or took > (allowed if is_idle else AT_MOST * allowed)

    def _computed(self) -> float | None:
        """Seconds of all cores that it has used so far, if the system tells."""
        try:
            fields = self._stat.read_text().rpartition(')')[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')   # in user mode, and in the system
