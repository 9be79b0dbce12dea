"""What a pipeline did in its latest step: the part of a Pipeline that shows and saves it."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fewgpu.device import Device
from fewgpu.schedule import Message, Schedule
from fewgpu.trace import Timeline
from fewgpu.trace_save import save

if TYPE_CHECKING:
    from fewgpu.hybrid import Replicas
    from fewgpu.transport.ranks import Ranks


class Traced:
    """The part of a Pipeline that tells what happened."""

    devices: Sequence[Device]
    ranks: 'Ranks | None'
    replicas: 'Replicas | None'
    _names: list[str]                  # of the rows
    _latest: Schedule                  # that ran
    _spans: Sequence[Sequence[tuple]]  # of each row
    _arrived: Mapping[Message, float]  # when

    @property
    def trace(self) -> Timeline:
        """What the latest step did (one that failed: as far as it came), a row a device; on ranks only the own one is
        filled (see `gather_trace`). Bytes are counted on devices with a ledger: `devices[0].meter()` before."""
        return Timeline.of(self._spans, self._names)

    def gather_trace(self) -> Timeline:
        """On ranks: `trace` of all, which all call. Clocks are not compared (see `save_trace`)."""
        rows = [[(op, *fields) for op, fields in zip(ops, self.ranks.tell(row, [(*s[1:],) for s in spans]))]
                for row, (ops, spans) in enumerate(zip(self._latest.rows, self._spans)) if self.ranks]
        return Timeline.of(rows, self._names) if self.ranks else self.trace

    def save_trace(self, folder: str | PathLike[str]) -> Path:
        """Write `trace` as `rank-N.json` into a folder (each rank its own); `./workshop.py trace FOLDER` reads them.

        Raises ValueError if there was no step, OSError if the file cannot be written.
        """
        done = self._latest, self._spans, self._names, self._arrived
        return save(folder, *done, self.devices, self.ranks, self.replicas)
