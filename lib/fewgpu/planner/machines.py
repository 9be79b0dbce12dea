"""The devices that a planner may use, and how fast bytes travel between them."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Machines:
    """Equal devices, in equal servers.

    devices: how many. bandwidth: bytes a second between two of them in one server (inf: for nothing).
    per_server: devices in a server; 0: all are in one. between: bytes a second from server to server; 0: as
    inside. memory: bytes of a device.

    Raises ValueError, a sentence, for what cannot be.
    """

    devices: int
    bandwidth: float
    per_server: int = 0
    between: float = 0.0
    memory: float = inf

    def __post_init__(self) -> None:
        for name in ('devices', 'per_server'):
            count = getattr(self, name)
            if not isinstance(count, int) or count < (name == 'devices'):
                raise ValueError(f'{name} is a whole number{" above 0" * (name == "devices")}, not {count!r}')
        if self.per_server and self.devices % self.per_server:
            raise ValueError(f'{self.devices} devices do not fill servers of {self.per_server}: '
                             'name whole servers')
        if not self.bandwidth > 0.0 or not self.between >= 0.0:   # (a NaN compares false)
            raise ValueError('a link carries more than 0 bytes a second, not '
                             f'{self.bandwidth} inside a server and {self.between} between servers')
        if not self.memory > 0.0:
            raise ValueError(f'a device has more than 0 bytes of memory, not {self.memory}')

    @property
    def in_a_server(self) -> int:
        return self.per_server or self.devices

    @property
    def servers(self) -> int:
        return self.devices // self.in_a_server

    @property
    def outside(self) -> float:
        """Bytes a second from server to server."""
        return self.between or self.bandwidth
