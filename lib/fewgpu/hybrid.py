"""Hybrid parallelism: pipelines side by side, each with its own rows; a grid of ranks.

                   stage 0      stage 1
    replica 0       rank 0 ────► rank 1      ────►  activations, ◄──── gradients: a step
                      ║            ║
    replica 1       rank 2 ────► rank 3        ║    the sum over replicas: once a step, by stage

A stage adds up its gradients over the replicas in its update, right after its last backward, so the
last stages do it while the first ones still have backwards to run: the reduction of a stage overlaps
the cool-down of the pipeline. (HyPar-Flow, arXiv 1911.05146, has one all-reduce a partition, too.)
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fewgpu.buckets import average_gradients, fingerprint
from fewgpu.collectives import all_gather, all_reduce, broadcast
from fewgpu.group import Group
from fewgpu.pipeline import Pipeline
from fewgpu.transport.ranks import Ranks
from fewgpu.weights import Gradients


class Replicas:
    """The ranks that hold the same stages of different pipelines."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._weight = 1.0

    def start_alike(self, module: nn.Module) -> None:
        """Everybody takes the parameters and buffers of replica 0. Raises ValueError if the replicas
        do not have the same ones."""
        state = [*module.named_parameters(), *module.named_buffers()]
        device = state[0][1].device if state else 'cpu'
        every = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self._group.size)]
        every[self._group.rank] += fingerprint(state)
        all_gather(every, self._group)
        if len({int(one) for one in every}) > 1:
            raise ValueError('the replicas of a stage have different layers: every rank makes the same '
                             'model and the same cut')
        for _, tensor in state:
            broadcast(tensor.detach(), self._group)

    def begin(self, rows: int, device: torch.device, *, is_mean: bool) -> None:
        """A step of which this replica has so many rows. Losses are means over rows, or sums."""
        total = torch.tensor([rows], device=device)
        all_reduce(total, self._group)
        self._weight = rows / max(1, int(total)) if is_mean else 1.0

    def average(self, gradients: Gradients) -> Gradients:
        """Those of the loss of all rows, from those of each replica's rows."""
        return average_gradients(gradients, self._group, self._weight)

    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        """That of all rows, from that of each replica's rows."""
        whole = loss * self._weight
        all_reduce(whole, self._group)
        return whole


def hybrid(module: nn.Sequential, balance: Iterable[int], *, replicas: int,
           time_limit: float = 60.0, **options: Any) -> Pipeline:
    """A Pipeline whose `step(x, y)` trains on the mini-batches of all replicas together.

    Every rank calls it, with the same model; `replicas` pipelines share the ranks of
    torch.distributed, neighbours in one pipeline. The ranks of a pipeline are given the same
    mini-batch, other pipelines theirs, of any size: all rows count alike. All weights start as
    replica 0's; running statistics of batch norm stay each replica's own. `options` are those of
    Pipeline.

    Raises ValueError if the ranks cannot be shared out evenly, or if the schedule updates the weights
    within a step; PeerError in a step, if a replica
    is gone or late.
    """
    world_size = dist.get_world_size()
    if replicas < 1 or world_size % replicas:
        raise ValueError(f'{world_size} ranks cannot be shared out to {replicas} pipelines evenly: '
                         f'start a multiple of {max(replicas, 1)} ranks')
    size = world_size // replicas
    replica, row = divmod(dist.get_rank(), size)
    ranks = Ranks(range(replica * size, (replica + 1) * size), time_limit=time_limit)
    groups = [dist.new_group(range(other, world_size, size)) for other in range(size)]
    return Pipeline(module, balance, ranks=ranks, time_limit=time_limit,
                    replicas=Replicas(Group(groups[row], time_limit)), **options)
