"""The machines a planner plans for: devices in servers, links between them, sizes as people write them."""

import re
from dataclasses import dataclass, fields, replace
from math import isfinite

UNITS = {'': 1.0, 'k': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12, 'Ki': 2.0**10, 'Mi': 2.0**20, 'Gi': 2.0**30,
         'Ti': 2.0**40}


@dataclass(frozen=True)
class Cluster:
    """Equal devices in equal servers.

         server 0                          server 1
        ┌───────────────────────┐         ┌───────────────────────┐
        │ dev 0 ─ inside ─ dev 1│         │ dev 2 ─ inside ─ dev 3│
        └───────────┬───────────┘         └───────────┬───────────┘
                    └─────────── between ─────────────┘    shared by the devices of a server

    Bandwidths are bytes/s in one direction; links work in both at once. Raises ValueError for a size that
    is not above 0 (latency and overhead may be 0), and for an efficiency above 1.
    """

    devices: int = 8
    per_server: int = 8
    memory: float = 16e9           #: bytes a device
    flops: float = 125e12          #: peak FLOP/s of a device in mixed precision
    flops32: float = 15.7e12       #: peak FLOP/s in float32
    efficiency: float = 0.4        #: the share of the peak that layers reach while they compute
    inside: float = 150e9          #: of a device's link within its server
    between: float = 3.125e9       #: of a server's network
    latency: float = 5e-6          #: seconds that an empty message takes
    overhead: float = 1e-4         #: seconds a layer and pass, whatever its size: launching kernels
    host_bandwidth: float = 12e9   #: of a device's link to the memory of its server
    host_memory: float = 488e9     #: bytes a server
    host_update: float = 100e9     #: of the memory of a server, where the host updates weights
    disk_bandwidth: float = 1.6e9  #: a device's share of its server's disks
    disk_memory: float = 8e12      #: bytes a server

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            least = 'at least 0' if part.name in ('latency', 'overhead') else 'above 0'
            if not isfinite(value) or not (value >= 0 if least == 'at least 0' else value > 0):
                raise ValueError(f'{part.name} of a cluster is {least} and finite, not {value!r}')
        if self.efficiency > 1:
            raise ValueError(f'an efficiency is a share of the peak, above 0 and at most 1, not {self.efficiency}')

    def rate(self, mixed: bool = True) -> float:
        """FLOP/s that a device reaches."""
        return (self.flops if mixed else self.flops32) * self.efficiency

    @property
    def servers(self) -> int:
        return -(-self.devices // self.per_server)

    def reduce_scatter(self, size: float, ranks: int, stride: int = 1) -> float:
        """Seconds in which `ranks` devices, `stride` apart, reduce `size` bytes each, or gather as many.

        A ring within each server, then rings between servers, in which every device of a server has its
        part and all share the network: (g-1)/g S/inside + (k-1)/k S/between for g devices in each of k
        servers. With one server, or one device in each, it is the textbook's (N-1)/N S/B + (N-1) latency.
        """
        here = min(ranks, max(1, self.per_server // stride))
        servers = -(-ranks // here)
        seconds = (here - 1) / here * size / self.inside + (here - 1) * self.latency
        if servers > 1:
            sharing = here * min(stride, self.per_server)
            seconds += (servers - 1) / servers * size / here * sharing / self.between
            seconds += (servers - 1) * self.latency
        return seconds

    def all_reduce(self, size: float, ranks: int, stride: int = 1) -> float:
        """Seconds of both halves: 2(N-1)/N S/B + 2(N-1) latency where there is one kind of link."""
        return 2.0 * self.reduce_scatter(size, ranks, stride)

    def send(self, size: float, stages: int, stride: int = 1) -> float:
        """Seconds of a message from each device of a stage to the next stage's, `stride` apart.

        If the stages do not all fit a server, the slowest neighbours tell: those that share a network.
        """
        if stages * stride <= self.per_server:
            return self.latency + size / self.inside
        return self.latency + size * min(stride, self.per_server) / self.between


#: Published peaks (data sheets and a cloud's description, remembered); efficiencies are about what large
#: models are reported to reach (arXiv 2006.09503: 45 of 125 TFLOP/s on a V100; arXiv 2104.04473: 44 to 52 %
#: on A100s). Convolutional networks may reach less.
PRESETS = {
    'v100-16': Cluster(),   # eight with NVLink 2, PCIe 3, a network of 25 Gbit/s
    'v100-32': Cluster(memory=32e9, between=12.5e9, host_memory=768e9),   # the same with 100 Gbit/s
    'a100-80': Cluster(memory=80e9, flops=312e12, flops32=19.5e12, efficiency=0.5, inside=300e9, between=200e9,
                       host_bandwidth=25e9, host_memory=2e12, host_update=200e9, disk_bandwidth=3e9,
                       disk_memory=30e12),   # eight with NVLink 3, PCIe 4, eight networks of 200 Gbit/s
    'h100-80': Cluster(memory=80e9, flops=989e12, flops32=67e12, efficiency=0.4, inside=450e9, between=400e9,
                       host_bandwidth=50e9, host_memory=2e12, host_update=300e9, disk_bandwidth=5e9,
                       disk_memory=30e12),   # eight with NVLink 4, PCIe 5, eight networks of 400 Gbit/s
    'rtx3090-24': Cluster(per_server=2, memory=24e9, flops=71e12, flops32=35.6e12, inside=12e9, between=1.25e9,
                          host_memory=64e9, host_update=30e9, disk_bandwidth=2e9, disk_memory=2e12),
                          # two in a workstation, on PCIe 4; 10 Gbit/s between workstations
}


def preset(name: str, **changes: float) -> Cluster:
    """A preset, with changes. Raises ValueError with the names if there is none of that name."""
    if name not in PRESETS:
        raise ValueError(f"there is no cluster {name}; choose from {', '.join(PRESETS)}, and change it")
    return replace(PRESETS[name], **changes)


def parse_size(text: str) -> float:
    """Bytes from '16GB', '80 GiB' or '1.5TB'. Raises ValueError with the remedy."""
    match = re.fullmatch(r'\s*(\d+(?:\.\d+)?)\s*([kMGT]i?)?B\s*', text)
    if not match or not float(match[1]):
        raise ValueError(f'{text!r} is no amount of memory: write it with its unit, like 16GB or 80GiB')
    return float(match[1]) * UNITS[match[2] or '']


def parse_rate(text: str) -> float:
    """Bytes a second from '10GB/s' (bytes) or '100Gbit/s' (bits).

    Raises ValueError where bits and bytes cannot be told apart ('10Gb/s', '10Gbps', '10G'), and for no rate
    at all.
    """
    match = re.fullmatch(r'\s*(\d+(?:\.\d+)?)\s*([kMGT]i?)?(B|[bB]its?)/s\s*', text)
    if match and float(match[1]):
        return float(match[1]) * UNITS[match[2] or ''] / (1.0 if match[3] == 'B' else 8.0)
    if not match and re.fullmatch(r'\s*\d+(?:\.\d+)?\s*[kKmMgGtT]i?([bB]?(ps|/s)?)\s*', text):
        raise ValueError(f'{text!r} may mean bits or bytes: write 10Gbit/s (bits) or 10GB/s (bytes)')
    raise ValueError(f'{text!r} is no bandwidth: write it like 10GB/s (bytes) or 100Gbit/s (bits)')


def amount(size: float) -> str:
    """Bytes, for people, in three digits: '12.3 GB'."""
    unit = next((unit for unit in ('T', 'G', 'M', 'k') if size >= 0.9995 * UNITS[unit]), '')
    scaled = size / UNITS[unit]
    return f'{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f} {unit}B'
