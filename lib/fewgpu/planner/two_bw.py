"""PipeDream-2BW's planner: how wide, how deep, which micro-batch, with recompute or not.

Every width w (replicas), depth d (stages) with w d <= devices, and micro-batch b is priced by the formulas of
arXiv 2006.09503, section 4 and appendix A, for stage i with weights W_i, activations A_i(b), inputs I_i(b):

    pipelining      t = max_i max( T_comp_i + T_comm_i, T_sync_i / m )        m = B / (w b), at least d
    no pipelining   t = sum_i max( T_comp_i + T_comm_i, T_sync_i / m )        throughput = w b / t
    memory          2 W_i + d A_i + d I_i, with recompute 2 W_i + A_i + d I_i     (2BW: two weight versions)
                    W_i + A_i + I_i without pipelining: one version, one micro-batch in flight

T_comm = 2 (inputs and outputs that cross) / bandwidth, there and back; recompute makes T_comp 4/3 of what it
was. A bandwidth is that inside a server if w (or d) is less than a server has devices, else that between.
T_sync is that of a ring, 2 (w-1)/w W_i / bandwidth: the paper's own factor is not known to us.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from fewgpu.planner.machines import Machines
from fewgpu.planner.cuts import Cuts

RECOMPUTE = 4 / 3   # c_extra: a backward takes as long as two forwards, and there is one forward more


@dataclass(frozen=True)
class Block:
    """One block of a model.

    seconds: of forward and backward of a micro-batch of so many rows, on one device. weight_bytes: one
    version. activation_bytes, input_bytes: of a row, what the backward needs and what comes in.
    state_bytes: gradients and optimizer state, of which there is one version however many of the weights
    (the paper leaves them out).
    """

    seconds: Callable[[int], float]
    weight_bytes: float
    activation_bytes: float
    input_bytes: float
    state_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name in ('weight_bytes', 'activation_bytes', 'input_bytes', 'state_bytes'):
            if not isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise ValueError(f'{name} of a block is a figure of at least 0, not {getattr(self, name)}')


@dataclass(frozen=True)
class Setting:
    """One way to train, and what it costs.

    micro_batches: of a replica and an update (m). balance: blocks of each stage. seconds: t, of a
    micro-batch in a full pipeline. throughput: rows a second of all replicas. memory: bytes of the fullest
    device. dropped: why it is not possible, '' if it is.
    """

    width: int
    depth: int
    micro_batch: int
    recompute: bool
    pipelined: bool
    micro_batches: int
    balance: tuple[int, ...]
    seconds: float
    throughput: float
    memory: float
    dropped: str

    @property
    def g(self) -> float:
        """g_opt = B / (N b): micro-batches of an update for each that is in flight."""
        return self.micro_batches / self.depth


def settings(blocks: Sequence[Block], machines: Machines, batch: int, *,
             micro_batches: Iterable[int] = (1, 2, 4, 8, 16, 32, 64)) -> list[Setting]:
    """All settings for a global batch of so many rows: possible ones first, the fastest of them in front.

    Args:
        blocks: the model, in order. Stages are cut between them, the slowest as fast as can be.
        machines: the devices; not all need be used.
        batch: rows of an update, over all replicas; only its exact divisions w b m are looked at.
        micro_batches: the rows b to try.

    Of equally fast settings those without recompute come first, then the shallow ones.

    Raises ValueError, a sentence, for no blocks, a batch below 1, or seconds that are no figure.
    """
    micro_batches = sorted(set(micro_batches))
    if not blocks or batch < 1 or not micro_batches or micro_batches[0] < 1:
        raise ValueError('a plan takes at least one block, a batch of at least one row, and micro-batches of '
                         f'at least one row, not {len(blocks)} blocks, batch {batch}, micro-batches '
                         f'{micro_batches}')
    found = [setting for b in micro_batches for setting in _of_micro_batch(blocks, machines, batch, b)]
    return sorted(found, key=lambda one: (bool(one.dropped), -one.throughput, one.recompute, one.depth,
                                          one.width, one.micro_batch, one.pipelined))


def _of_micro_batch(blocks: Sequence[Block], machines: Machines, batch: int, b: int) -> Iterator[Setting]:
    seconds = [block.seconds(b) for block in blocks]
    for one in seconds:
        if not isfinite(one) or one < 0:
            raise ValueError(f'a block takes at least 0 seconds for a micro-batch of {b}, not {one}')
    deepest = min(machines.devices, len(blocks))
    cuts = _cuts(seconds, deepest)
    for depth in range(1, deepest + 1):
        stages = _stages(cuts[depth], len(blocks))
        for width in range(1, machines.devices // depth + 1):
            if batch % (width * b) == 0:
                for recompute in (False, True):
                    for pipelined in (False, True)[:1 + (depth > 1)]:
                        yield _priced(blocks, seconds, machines, batch, b, stages, width, recompute, pipelined)


def _cuts(seconds: Sequence[float], deepest: int) -> list[list[int]]:
    """For each number of stages, the balance whose slowest stage is fastest (no replicas)."""
    sums = [[sum(seconds[first:end]) for end in range(first + 1, len(seconds) + 1)]
            for first in range(len(seconds))]
    cuts = Cuts(len(seconds), deepest, lambda first, replicas, _: sums[first] if replicas == 1 else [],
                [0.0] * len(seconds))
    return [[], *([cut.last - cut.first + 1 for cut in cuts.stages(0, depth)]
                  for depth in range(1, deepest + 1))]


def _stages(balance: Sequence[int], blocks: int) -> list[range]:
    stops = [sum(balance[:stage]) for stage in range(len(balance) + 1)]
    return [range(first, stop) for first, stop in zip(stops, stops[1:])]


def _priced(blocks: Sequence[Block], seconds: Sequence[float], machines: Machines, batch: int, b: int,
            stages: Sequence[range], width: int, recompute: bool, pipelined: bool) -> Setting:
    depth, m = len(stages), batch // (width * b)
    times, memory = [], 0.0
    for stage in stages:
        weights = sum(blocks[i].weight_bytes for i in stage)
        crossing = sum(b * blocks[i].input_bytes for i in (stage.start, stage.stop) if 0 < i < len(blocks))
        compute = sum(seconds[i] for i in stage) * (RECOMPUTE if recompute else 1.0)
        sync = 2 * (width - 1) / width * weights / _bandwidth(machines, width)
        times.append(max(compute + 2 * crossing / _bandwidth(machines, depth), sync / m))
        memory = max(memory, _memory([blocks[i] for i in stage], b, depth if pipelined else 1, recompute,
                                     versions=2 if pipelined else 1))
    time = max(times) if pipelined else sum(times)
    dropped = ''
    if pipelined and m < depth:
        dropped = f'{m} micro-batches do not fill {depth} stages'
    if memory > machines.memory:
        dropped = f'needs {memory:.3g} bytes a device, which has {machines.memory:.3g}'
    return Setting(width, depth, b, recompute, pipelined, m, tuple(map(len, stages)), time,
                   width * b / time if time else float('inf'), memory, dropped)


def _memory(stage: Sequence[Block], b: int, in_flight: int, recompute: bool, versions: int) -> float:
    fixed = sum(versions * block.weight_bytes + block.state_bytes for block in stage)
    activations = b * sum(block.activation_bytes for block in stage)
    return fixed + activations * (1 if recompute else in_flight) + in_flight * b * stage[0].input_bytes


def _bandwidth(machines: Machines, size: int) -> float:
    return machines.bandwidth if machines.servers == 1 or size < machines.in_a_server else machines.outside
