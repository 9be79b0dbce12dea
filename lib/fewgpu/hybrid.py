"""Hybrid parallelism: pipelines side by side, each with its own rows; a grid of ranks.

    pipeline = hybrid.parallelize(model, '2x2', loss_fn=..., optimizer=...)   # on every one of 4 ranks
    loss = pipeline.step(x, y)                                                # of this replica's rows

                   stage 0      stage 1
    replica 0       rank 0 ────► rank 1      ────►  activations, ◄──── gradients: a step
                      ║            ║
    replica 1       rank 2 ────► rank 3        ║    the sum over replicas: once a step, by stage

A stage adds up its gradients over the replicas in its update, right after its last backward, so the
last stages do it while the first ones still have backwards to run: the reduction of a stage overlaps
the cool-down of the pipeline. (HyPar-Flow, arXiv 1911.05146, has one all-reduce a partition, too.)
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from fewgpu.alike import checksum, start_alike
from fewgpu.balance.cut import cut
from fewgpu.buckets import average_gradients
from fewgpu.collectives import all_gather, all_reduce
from fewgpu.group import Group, come_to_make, verify_met
from fewgpu.held import MakeOptimizer
from fewgpu.loss import LossFn
from fewgpu.partition import verify_module
from fewgpu.pipeline import Pipeline
from fewgpu.tensor_parallel import Sharded
from fewgpu.tensor_transformer import tensor_parallel
from fewgpu.transport.ranks import Ranks
from fewgpu.transport.stamps import Meetings
from fewgpu.weights import Gradients


class Replicas:
    """The ranks that hold the same stages of different pipelines; `parts` are those that hold parts of one."""

    def __init__(self, group: Group, parts: Group | None = None) -> None:
        self._group, self._parts = group, parts
        self._weight = 1.0
        self.meetings = [Meetings(tuple(dist.get_process_group_ranks(each.process_group)))
                         for each in (group, parts) if each]   #: of the replicas, and of the parts if there are some

    @property
    def is_first(self) -> bool:
        """Is this the rank of replica 0, and of part 0, that holds these stages?"""
        return self._group.rank == 0 and (self._parts is None or self._parts.rank == 0)

    @property
    def size(self) -> int:
        """How many replicas there are."""
        return self._group.size

    @property
    def index(self) -> tuple[int, int]:
        """Which replica, and which part of its stages, this rank has."""
        return self._group.rank, self._parts.rank if self._parts else 0

    def take_first_replica(self, module: nn.Module) -> None:
        """Everybody takes the parameters and buffers of replica 0. Raises ValueError if the replicas
        do not have the same ones."""
        start_alike(module, self._group)   # the parts of one stage are of one model: see tensor_parallel

    def begin(self, rows: int, seed: int, given: Any, device: torch.device, *, is_mean: bool) -> None:
        """A step of which this replica has so many rows. Losses are means over rows, or sums.

        Raises ValueError if parts of one stage have other rows, other numbers in what they were `given` (inputs and
        targets; see `fewgpu.alike.checksum`), or would draw other dropout masks.
        """
        if self._parts:
            mine = [rows, seed, checksum(given)]
            every = [torch.tensor(mine, device=device) for _ in range(self._parts.size)]
            with self.meetings[-1].noted():
                all_gather(every, self._parts)
            if any(theirs.tolist() != mine for theirs in every):
                counts = ', '.join(str(int(theirs[0])) for theirs in every)
                raise ValueError(f'the parts of a stage were given different mini-batches (of {counts} rows), or their '
                                 f'random generators are at different points: give the ranks of a pipeline the same '
                                 f'rows, and call torch.manual_seed with the same number on all of them')
        total = torch.tensor([rows], device=device)
        with self.meetings[0].noted():
            all_reduce(total, self._group)
        self._weight = rows / max(1, int(total)) if is_mean else 1.0

    def average(self, gradients: Gradients) -> Gradients:
        """Those of the loss of all rows, from those of each replica's rows."""
        return average_gradients(gradients, self._group, self._weight)

    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        """That of all rows, from that of each replica's rows."""
        whole = loss * self._weight if self._weight else torch.zeros_like(loss)   # of no rows it may be nan
        all_reduce(whole, self._group)
        return whole


class Grid(NamedTuple):
    """So many replicas, each a pipeline of so many stages, each of so many tensor-parallel parts.

    Neighbouring ranks hold the parts of one stage, which exchange most; next come the stages of a pipeline, and
    replicas, which exchange gradients once a step, are farthest: rank = (replica stages + stage) parts + part.
    """

    replicas: int
    stages: int
    parts: int = 1

    @classmethod
    def of(cls, strategy: str, ranks: int) -> 'Grid':
        """From '2x2' (replicas x stages) or '2x2x2' (x parts). Raises ValueError if it is no strategy, or one
        for another number of ranks."""
        factors = strategy.lower().split('x') if isinstance(strategy, str) else []
        if not (len(factors) in (2, 3) and all(f.isascii() and f.isdigit() and int(f) for f in factors)):
            raise ValueError(f"a strategy is replicas x stages, as '2x2', or replicas x stages x tensor-parallel "
                             f"parts, as '2x2x2', and not {strategy!r}")
        grid = cls(*map(int, factors))
        if math.prod(grid) != ranks:
            raise ValueError(f'{strategy} is a grid of {math.prod(grid)} ranks, and there are {ranks}: start as many, '
                             f'or choose factors whose product is {ranks}')
        return grid

    def rank(self, replica: int, stage: int, part: int) -> int:
        return (replica * self.stages + stage) * self.parts + part

    def place(self, rank: int) -> tuple[int, int, int]:
        """The replica, the stage and the part of a rank."""
        rest, part = divmod(rank, self.parts)
        return *divmod(rest, self.stages), part


def hybrid(module: nn.Sequential, balance: Iterable[int], *, replicas: int, parts: int = 1,
           time_limit: float = 60.0, **options: Any) -> Pipeline:
    """A Pipeline whose `step(x, y)` trains on the mini-batches of all replicas together.

    Every rank calls it, with the same model; `replicas` pipelines share the ranks of
    torch.distributed, neighbours in one pipeline (see `Grid`). The ranks of a pipeline are given the same
    mini-batch, other pipelines theirs, of any size: all rows count alike. All weights start as
    replica 0's; running statistics of batch norm stay each replica's own. With `parts`, every stage of a GPT
    is cut into so many tensor-parallel parts (see `fewgpu.tensor_transformer`). `options` are those of
    Pipeline.

    Raises ValueError if the ranks cannot be shared out evenly, or if there are several replicas and the schedule
    updates the weights within a step; PeerError if a rank does not come in time, and in a step, if a replica is gone
    or late.
    """
    verify_met(time_limit)
    world_size = dist.get_world_size()
    if min(replicas, parts) < 1 or world_size % (replicas * parts):
        raise ValueError(f'{world_size} ranks cannot be shared out to {replicas} pipelines evenly: '
                         f'start a multiple of {max(replicas, 1) * max(parts, 1)} ranks')
    if parts > 1 and options.get('loss_scale'):
        raise ValueError('a loss scale does not know whether another tensor-parallel part has overflowed: train in '
                         'bfloat16, which needs none')
    grid = Grid(replicas, world_size // (replicas * parts), parts)
    come_to_make(range(world_size), f'grid of {" x ".join(map(str, grid))} ranks', time_limit)
    replica, _, part = grid.place(dist.get_rank())
    beside, every_part = None, None
    if replicas * parts > 1:   # else it is a pipeline as any other
        beside, every_part = _beside(grid, time_limit)
    if every_part:
        module = tensor_parallel(module, every_part)
        for layer in (layer for layer in module.modules() if isinstance(layer, Sharded)):
            layer.verifies = False   # Replicas.begin does, once a step and for the targets too
    ranks = Ranks([grid.rank(replica, s, part) for s in range(grid.stages)], time_limit=time_limit)
    return Pipeline(module, balance, ranks=ranks, time_limit=time_limit, replicas=beside, **options)


def _beside(grid: Grid, time_limit: float) -> tuple[Replicas, Group | None]:
    """The ranks beside this one in the grid, and of them those with parts of its stage (None: there are no parts)."""
    every_part = _own_group([[grid.rank(d, s, t) for t in range(grid.parts)] for d in range(grid.replicas)
                             for s in range(grid.stages)], time_limit) if grid.parts > 1 else None
    every_replica = _own_group([[grid.rank(d, s, t) for d in range(grid.replicas)]
                                for s in range(grid.stages) for t in range(grid.parts)], time_limit)
    return Replicas(every_replica, every_part), every_part


def _own_group(groups: Sequence[Sequence[int]], time_limit: float) -> Group:
    """The group that this rank is in; all ranks make all groups, as torch.distributed asks for."""
    made = {tuple(members): dist.new_group(members) for members in map(list, groups)}
    return next(Group(group, time_limit) for members, group in made.items() if dist.get_rank() in members)


def parallelize(module: nn.Sequential, strategy: str, *, loss_fn: LossFn, optimizer: MakeOptimizer | None = None,
                balance: Iterable[int] | None = None, time_limit: float = 60.0, **options: Any) -> Pipeline:
    """A plain model, trained on a grid of ranks by one call: the script stays what it was otherwise.

    `strategy` is replicas x stages, as '2x2', or replicas x stages x tensor-parallel parts, as '2x2x2': data,
    model and tensor parallelism at once (HyPar-Flow, arXiv 1911.05146, has the first two).

    Usage::

        pipeline = parallelize(module, '1x2', loss_fn=nn.functional.mse_loss, optimizer=torch.optim.Adam)
        for x, y in batches:                # on every rank; all of a replica are given the same rows
            loss = pipeline.step(x, y)

    `balance` are the layers of each stage; by default they have about as many parameters each, but for that every
    layer counts a little, and with 'v-shape' and 'interleaved' a rank has two stages. `chunks` is by default four
    times the pipeline's ranks, for a small bubble (arXiv 1811.06965, section 2.3). For all else see `hybrid` and
    Pipeline.

    Raises ValueError if the strategy does not fit the ranks, or there are more stages than layers.
    """
    verify_met(time_limit)
    grid = Grid.of(strategy, dist.get_world_size())
    if balance is None:
        verify_module(module)
        sizes = [sum(p.numel() for p in layer.parameters()) for layer in module]
        stages = grid.stages * (2 if options.get('schedule') in ('v-shape', 'interleaved') else 1)
        balance = cut([size + max(1, sum(sizes) // (10 * len(sizes))) for size in sizes], stages)
    options = {'chunks': 4 * grid.stages if grid.stages > 1 else 1, **options}
    return hybrid(module, balance, replicas=grid.replicas, parts=grid.parts, time_limit=time_limit, loss_fn=loss_fn,
                  optimizer=optimizer, **options)
