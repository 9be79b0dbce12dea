"""`python -m tests.bench data_parallel`: DataParallel against torch's DDP and the naive version.

Every rank holds a replica of the network for every contestant. A round measures all of them, one
after the other, so that a slow minute slows all alike; a step takes as long as its slowest rank.
One intra-op thread a rank.
"""

import copy
import gc
import time
from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fewgpu.buckets import average_one_by_one
from fewgpu.collectives import Group
from fewgpu.data import load
from fewgpu.data_parallel import DataParallel
from fewgpu.launch import launch
from fewgpu.malloc import keep_freed_memory
from fewgpu.models import build
from fewgpu.workshop.machine import describe
from tests.bench.on_ranks import Options, measured, show, slowest
from tests.bench.ratios import Ratio
from tests.bench.stats import Summary, paired_ratios
from tests.bench.work import Failed, disagreement

OURS, DDP, VIEWS, NAIVE = 'fewgpu', 'torch DDP', 'torch DDP, gradients as views', 'naive'
ALONE = 'no communication'
TOLERANCE = 1e-4   # of gradients that are added in another order, in float32
Step = Callable[[], None]


def run(options: Options) -> dict:
    """Measure, print and write the results. Raises Failed if contestants disagree."""
    ranks = launch(_measure, options.ranks, args=(options,))
    found = {'options': asdict(options), 'machine': describe(), 'rounds': slowest(ranks)}
    return show(found, ratios(found), [speeds(found)], 'bench_data_parallel.json')


def _measure(options: Options) -> list[dict]:
    """In every rank: seconds a step of every contestant, round by round."""
    keep_freed_memory()
    contestants = _contestants(options)
    _agree(contestants)
    return measured(options, lambda: {'seconds': {
        name: _seconds(model, step, options.steps) for name, (model, step) in contestants.items()}})


def _contestants(options: Options) -> dict[str, tuple[nn.Module, Step]]:
    """Each with its own replica, on the rows of this rank."""
    torch.manual_seed(options.seed)
    plain = build(options.arch)
    first = options.batch * dist.get_rank()
    inputs, targets = load('train')[first:first + options.batch]
    group = Group(dist.new_group())

    def contestant(wrap: Callable[[nn.Module], nn.Module], after: Callable = lambda _: None):
        module = copy.deepcopy(plain)
        model = wrap(module)

        def step() -> None:
            F.cross_entropy(model(inputs), targets).backward()
            after(module.parameters())

        return module, step

    return {OURS: contestant(DataParallel),
            DDP: contestant(DistributedDataParallel),
            VIEWS: contestant(lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True)),
            NAIVE: contestant(lambda m: m, lambda parameters: average_one_by_one(parameters, group)),
            ALONE: contestant(lambda m: m)}


def _agree(contestants: dict[str, tuple[nn.Module, Step]]) -> None:
    reference = None
    for name, (module, step) in contestants.items():
        step()
        gradients = {key: p.grad.clone() for key, p in module.named_parameters()}
        reference = reference or gradients
        if name != ALONE and (error := disagreement(gradients, reference)) > TOLERANCE:
            raise Failed(f"{name} computes something else: its gradients are off by {error:.2g} "
                         f"(relative) from {OURS}'s, so its speed means nothing")


def _seconds(module: nn.Module, step: Step, steps: int) -> float:
    """A step, on average; gradients are dropped outside the clock."""
    gc.collect()
    taken = 0.0
    for _ in range(steps):
        module.zero_grad(set_to_none=True)
        dist.barrier()
        start = time.perf_counter()
        step()
        taken += time.perf_counter() - start
    return taken / steps


def ratios(found: dict) -> list[Ratio]:
    """fewgpu's speed over everybody's."""
    seconds = {name: [one['seconds'][name] for one in found['rounds']]
               for name in found['rounds'][0]['seconds']}
    return [Ratio(f'{OURS} / {name}', '', aim,
                  Summary.of(paired_ratios(seconds[name], seconds[OURS])))
            for name, aim in ((DDP, 0.95), (VIEWS, 0.95), (NAIVE, None), (ALONE, None))]


def speeds(found: dict) -> Table:
    """Everybody's samples a second, of all ranks together."""
    options = found['options']
    table = Table('contestant', 'samples/s', 'range', 'seconds a step', title='{arch}, {batch} samples '
                  'a rank, {ranks} ranks'.format(**options))
    for name in found['rounds'][0]['seconds']:
        taken = [one['seconds'][name] for one in found['rounds']]
        speed = Summary.of([options['batch'] * options['ranks'] / value for value in taken])
        table.add_row(name, f'{speed.median:.2f}', f'{speed.smallest:.2f} to {speed.largest:.2f}',
                      f'{Summary.of(taken).median:.4f}')
    return table
