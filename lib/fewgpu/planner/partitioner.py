"""PipeDream's partitioner: which layers form a stage, and how many replicas it gets.

From a chain's seconds and bytes it finds the partition whose slowest stage or link is fastest; in a full
pipeline that sets the pace. Two forms:

Flat, one server (arXiv 1806.03377, section 3.3): stage i..j on m devices takes
    T(i..j, m) = 1/m max( sum T_l, 4 (m-1)/m sum w_l / B ),   the link after layer j takes 2 a_j / B
and is not divided by the replicas at its ends. The factor 4 (m-1)/m is that of the authors' code; their
code adds where the paper takes the larger, which is taken here.

Two levels, servers with faster links inside (SOSP'19, section 3.1): within a server as above, and a range of
layers on m servers, each with the same stages inside, takes
    T2(i..j, m) = 1/m max( A1(i..j, devices of a server), 4 (m-1)/m sum w_l / B_between ).
The lines of this form are remembered, not read again; the factor is that of the flat form, so that servers
of one device are the flat form with the slow links.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from fewgpu.planner.chain import Chain
from fewgpu.planner.machines import Machines
from fewgpu.planner.cuts import Cuts


@dataclass(frozen=True)
class Stage:
    """Layers first to last, on so many devices in all, spread over so many servers.

    compute, sync, link: seconds a mini-batch that its devices compute, exchange gradients of weights, and
    that the link behind it is busy; of replicas, one mini-batch's share. in_flight: mini-batches a replica
    has begun and not finished, each with a weight version and its activations; memory: bytes of these.
    """

    first: int
    last: int
    replicas: int
    servers: int
    compute: float
    sync: float
    link: float
    in_flight: int
    memory: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.sync, self.link)


@dataclass(frozen=True)
class Partition:
    """Stages, in order, and what the model of costs predicts for them."""

    stages: tuple[Stage, ...]

    @property
    def slowest_seconds(self) -> float:
        """Between two mini-batches of a full pipeline."""
        return max(stage.seconds for stage in self.stages)

    @property
    def throughput(self) -> float:
        """Mini-batches a second of a full pipeline."""
        return 1.0 / self.slowest_seconds if self.slowest_seconds else inf

    @property
    def bound(self) -> str:
        """What sets the pace: 'compute', 'sync' (gradients of replicas) or 'link'."""
        return max(('compute', 'sync', 'link'), key=lambda part: max(getattr(s, part) for s in self.stages))

    @property
    def config(self) -> str:
        """Replicas of the stages, as the papers write it: '15-1'."""
        return '-'.join(str(stage.replicas) for stage in self.stages)

    @property
    def balance(self) -> list[int]:
        """Layers of the stages."""
        return [stage.last - stage.first + 1 for stage in self.stages]

    @property
    def devices(self) -> int:
        return sum(stage.replicas for stage in self.stages)

    @property
    def noam(self) -> int:
        """Mini-batches a replica of the first stage admits at the start: ceil(devices / its replicas)."""
        return ceil(self.devices / self.stages[0].replicas)


#: Part of a chain on equal servers: how many; and (first, last, replicas in each) of the stages inside.
Group = tuple[int, Sequence[tuple[int, int, int]]]


def partition(chain: Chain, machines: Machines, *, use_all: bool = True) -> Partition:
    """The partition whose slowest stage or link is fastest; ties are broken towards long first stages.

    A stage fits if every mini-batch in flight, ceil(devices from this stage to the end / its replicas), has
    its weight version and activations in machines.memory. `use_all=False` may leave devices idle; then all
    devices of servers behind a stage count for what is in flight.

    Raises ValueError, a sentence, if no partition fits. Under a second for 40 layers and 16 devices.
    """
    if machines.servers == 1:
        inside = _inside(chain, machines, len(chain) - 1, 0, 1)
        seconds, used = inside.best(0, use_all)
        groups = [(1, [cut[:3] for cut in inside.stages(0, used)])] if seconds < inf else []
    else:
        groups = _over_servers(chain, machines, use_all)
    if not groups:
        raise ValueError(_too_large(chain, machines))
    return price(chain, machines, groups)


def data_parallel(chain: Chain, machines: Machines) -> Partition:
    """All layers on every device, whatever its memory."""
    return price(chain, machines, [(machines.servers, [(0, len(chain) - 1, machines.in_a_server)])])


def price(chain: Chain, machines: Machines, groups: Iterable[Group]) -> Partition:
    """What a given partition costs. (Its stages must cover the chain, in order; its memory is not checked.)

    One server: a single group (1, [(first, last, replicas), ...]).
    """
    stages: list[Stage] = []
    behind = 0   # devices of the groups that follow; from the end, for what is in flight hangs on them
    for servers, parts in reversed(list(groups)):
        outside = _sync(chain.weight_bytes(parts[0][0], parts[-1][1]), servers, machines.outside)
        inside = 0
        for first, last, replicas in reversed(parts):
            inside += replicas
            ends, leaves = last == len(chain) - 1, (first, last, replicas) == tuple(parts[-1])
            link = 0.0 if ends else _link(chain, last, machines.outside if leaves else machines.bandwidth)
            begun = _in_flight(behind, servers, inside, replicas)
            stages.append(Stage(
                first, last, servers * replicas, servers, chain.seconds(first, last) / replicas / servers,
                max(_sync(chain.weight_bytes(first, last), replicas, machines.bandwidth) / servers, outside),
                link if leaves else link / servers, begun, begun * chain.stash_bytes(first, last)))
        behind += servers * inside
    return Partition(tuple(reversed(stages)))


def _sync(weight_bytes: float, replicas: int, bandwidth: float) -> float:
    """Seconds, one mini-batch's share: replicas exchange gradients once they have all had one."""
    return 4 * (replicas - 1) / replicas * weight_bytes / bandwidth / replicas


def _link(chain: Chain, last: int, bandwidth: float) -> float:
    """Seconds of activations and their gradients after a layer."""
    return 2 * chain.layers[last].output_bytes / bandwidth


def _in_flight(behind: int, servers: int, inside: int, replicas: int) -> int:
    """ceil(devices to the end / replicas): `inside` each of so many servers, and `behind` after them."""
    return -(-(behind + servers * inside) // (servers * replicas))


def _inside(chain: Chain, machines: Machines, last: int, behind: int, servers: int) -> Cuts:
    """Layers up to `last` within a server; there are so many equal ones, and `behind` devices after them."""
    stages: dict[tuple[int, int], list[float]] = {}
    stashes = [[chain.stash_bytes(first, end) for end in range(first, last + 1)] for first in range(last + 1)]

    def prices(first: int, replicas: int, devices: int) -> list[float]:
        if (first, replicas) not in stages:
            stages[first, replicas] = [
                max(chain.seconds(first, end) / replicas,
                    _sync(chain.weight_bytes(first, end), replicas, machines.bandwidth))
                for end in range(first, last + 1)]
        if machines.memory == inf:
            return stages[first, replicas]
        begun = _in_flight(behind, servers, devices, replicas)
        fit = bisect_right(stashes[first], machines.memory, key=lambda stash: stash * begun)
        return stages[first, replicas][:fit]

    links = [_link(chain, end, machines.bandwidth) for end in range(last)]
    return Cuts(last + 1, machines.in_a_server, prices, links)


def _over_servers(chain: Chain, machines: Machines, use_all: bool) -> list[Group]:
    """The groups of the best partition; none if there is no way."""
    known: dict[tuple[int, int, int], Cuts] = {}

    def inside(last: int, servers: int, to_the_end: int) -> Cuts:
        behind = (to_the_end - servers) * machines.in_a_server
        key = (last, behind, servers) if machines.memory < inf else (last, 0, 1)   # else they do not matter
        if key not in known:
            known[key] = _inside(chain, machines, *key)
        return known[key]

    def prices(first: int, servers: int, to_the_end: int) -> list[float]:
        return [max(inside(last, servers, to_the_end).best(first, use_all)[0] / servers,
                    _sync(chain.weight_bytes(first, last), servers, machines.outside))
                for last in range(first, len(chain))]

    links = [_link(chain, last, machines.outside) for last in range(len(chain) - 1)]
    outside = Cuts(len(chain), machines.servers, prices, links)
    seconds, used = outside.best(0, use_all)
    groups = []
    for cut in outside.stages(0, used) if seconds < inf else ():
        cuts = inside(cut.last, cut.replicas, cut.machines)
        parts = cuts.stages(cut.first, cuts.best(cut.first, use_all)[1])
        groups.append((cut.replicas, [part[:3] for part in parts]))
    return groups


def _too_large(chain: Chain, machines: Machines) -> str:
    layer = max(range(len(chain)), key=lambda one: chain.stash_bytes(one, one))
    needs = f'{chain.stash_bytes(layer, layer):.3g}'
    return (f'no partition of {len(chain)} layers over {machines.devices} devices fits in '
            f'{machines.memory:.3g} bytes each (layer {layer}, {chain.layers[layer].name}, needs {needs} '
            'for one mini-batch in flight): give devices more memory, profile a smaller mini-batch, or leave '
            'devices idle with use_all=False')
