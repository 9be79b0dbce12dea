"""The ways in which jobs/train_ranks.py trains: on one device, with data parallelism, as pipelines.

Each has `step(x, y)`, which all ranks call with the rows of the whole mini-batch, and takes those that are its own.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

from fewgpu import DataParallel, models
from fewgpu.collectives import Group, all_reduce
from fewgpu.hybrid import Grid, parallelize
from fewgpu.workshop.failed import node_here


def build(arch: str) -> nn.Sequential:
    """A network of `fewgpu.models`, or 'small', which trains in an instant; it can be cut between its layers."""
    if arch == 'small':
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
                             nn.Linear(32, 10))
    return models.build(arch)


def rank() -> int:
    """This one, 0 without ranks."""
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    """How many there are, 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(rows: torch.Tensor, shares: int, own: int) -> torch.Tensor:
    """The own rows of a mini-batch, which is shared out evenly. Raises ValueError if there are not enough."""
    if len(rows) < shares:
        raise ValueError(f'a mini-batch of {len(rows)} cannot be shared out to {shares}: choose a --batchsize of at '
                         f'least {shares}')
    return rows.tensor_split(shares)[own]


class Plain:
    """All rows on one device, without ranks."""

    def __init__(self, args: argparse.Namespace, model: nn.Sequential) -> None:
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        self.model = self.ranked(model.to(self.device), args)
        self.optimizer = torch.optim.SGD(self.model.parameters(), args.lr, args.momentum)
        self.place = f'rank {rank()} on {node_here()}'

    def ranked(self, model: nn.Module, args: argparse.Namespace) -> nn.Module:
        return model

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Train on the rows of this rank; the mean loss of all rows, of all ranks."""
        x, y = self.own(x).to(self.device), self.own(y).to(self.device)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return self.of_all(loss.item() * len(x)) / self.rows

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        self.rows = len(rows)
        return rows

    def of_all(self, number: float) -> float:
        return number


class Replicated(Plain):
    """Data parallelism: every rank has the model, and rows of its own."""

    def ranked(self, model: nn.Module, args: argparse.Namespace) -> nn.Module:
        self.group = Group(time_limit=args.time_limit)
        return DataParallel(model, time_limit=args.time_limit)

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        self.rows = len(rows)
        return share(rows, ranks(), rank())

    def of_all(self, number: float) -> float:
        total = torch.tensor([number], dtype=torch.float64)
        all_reduce(total, self.group)
        return total.item()


class Staged:
    """Pipelines: every rank has a stage, and every replica of the pipeline rows of its own."""

    optimizer = None   # each stage has its own, which the pipeline knows

    def __init__(self, args: argparse.Namespace, model: nn.Sequential) -> None:
        grid = Grid.of(self.strategy(args), ranks())
        self.replicas, (self.replica, stage, _) = grid.replicas, grid.place(rank())
        options = {'chunks': args.num_microbatches} if args.num_microbatches else {}
        self.model = parallelize(
            model, f'{grid.replicas}x{grid.stages}', loss_fn=nn.functional.cross_entropy, balance=args.balance,
            optimizer=lambda parameters: torch.optim.SGD(parameters, args.lr, args.momentum),
            schedule=args.schedule, time_limit=args.time_limit, **options)
        replica = f', replica {self.replica}' if grid.replicas > 1 else ''
        self.place = f'rank {rank()} on {node_here()}, stage {stage}{replica}'

    def strategy(self, args: argparse.Namespace) -> str:
        if args.way == 'pipeline':
            return f'1x{ranks()}'
        nodes = int(os.environ['GROUP_WORLD_SIZE'])   # says torchrun
        replicas = nodes if nodes > 1 else 2 if ranks() > 2 and ranks() % 2 == 0 else 1
        return args.grid or f'{replicas}x{ranks() // replicas}'

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Train on the rows of this replica; the mean loss of all rows."""
        x, y = (share(rows, self.replicas, self.replica).to(self.model.devices[0].torch) for rows in (x, y))
        return self.model.step(x, y).item()


WAYS = {'plain': Plain, 'ddp': Replicated, 'pipeline': Staged, 'hybrid': Staged}
