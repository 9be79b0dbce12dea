"""`python -m tests.bench data_parallel`: DataParallel against torch's DDP and the naive version.

Every rank holds a replica of the network for every contestant. A round measures all of them, one
after the other, so that a slow minute slows all alike; a step takes as long as its slowest rank.
One intra-op thread a rank.
"""

import copy
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Column, Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fewgpu.buckets import average_one_by_one
from fewgpu.collectives import Group
from fewgpu.data import load
from fewgpu.data_parallel import DataParallel
from fewgpu.launch import launch
from fewgpu.malloc import keep_freed_memory
from fewgpu.models import build
from fewgpu.workshop.machine import describe, two_core_efficiency
from tests.bench.ratios import Ratio
from tests.bench.stats import Summary, paired_ratios
from tests.bench.work import Failed, disagreement

OURS, DDP, VIEWS, NAIVE = 'fewgpu', 'torch DDP', 'torch DDP, gradients as views', 'naive'
ALONE = 'no communication'
TOLERANCE = 1e-4   # of gradients that are added in another order, in float32
Step = Callable[[], None]


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    rounds: int
    arch: str
    batch: int     # samples a rank
    ranks: int
    steps: int     # in a row, for each contestant in each round
    seed: int
    results: str


def run(options: Options) -> dict:
    """Measure, print and write the results. Raises Failed if contestants disagree."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    ranks = launch(_measure, options.ranks, args=(options,))
    rounds = [{'seconds': {name: max(rank[r]['seconds'][name] for rank in ranks)
                           for name in ranks[0][r]['seconds']},
               'efficiency': ranks[0][r]['efficiency']} for r in range(options.rounds)]
    found = {'options': asdict(options), 'machine': describe(), 'rounds': rounds}
    found['ratios'] = [{**asdict(row), 'verdict': row.verdict} for row in ratios(found)]
    for table in (speeds(found), ratio_table(ratios(found))):
        console.print(table)
    efficiency = Summary.of([measured['efficiency'] for measured in rounds])
    console.print(f'efficiency of {options.ranks} cores: {efficiency.median:.3f} '
                  f'({efficiency.smallest:.3f} to {efficiency.largest:.3f})')
    path = Path(options.results) / 'bench_data_parallel.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + '\n')
    console.print(f'written: {path}')
    return found


def _measure(options: Options) -> list[dict]:
    """In every rank: seconds a step of every contestant, round by round."""
    keep_freed_memory()
    contestants = _contestants(options)
    _agree(contestants)
    found = []
    for number in range(options.rounds + 1):   # one to warm up
        seconds = {name: _seconds(model, step, options.steps)
                   for name, (model, step) in contestants.items()}
        efficiency = two_core_efficiency(options.ranks, 1.0) if dist.get_rank() == 0 else None
        dist.barrier()   # the other ranks wait here, using no core
        if number:
            found.append({'seconds': seconds, 'efficiency': efficiency})
            if dist.get_rank() == 0:
                print(f'round {number}: ' + ', '.join(f'{n} {s:.3f} s' for n, s in seconds.items()))
    return found


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
    seconds = {name: [measured['seconds'][name] for measured in found['rounds']]
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
        taken = [measured['seconds'][name] for measured in found['rounds']]
        speed = Summary.of([options['batch'] * options['ranks'] / value for value in taken])
        table.add_row(name, f'{speed.median:.2f}', f'{speed.smallest:.2f} to {speed.largest:.2f}',
                      f'{Summary.of(taken).median:.4f}')
    return table


def ratio_table(rows: list[Ratio]) -> Table:
    """Paired ratios, against what was aimed at."""
    table = Table(Column('speed ratio, round by round', overflow='fold'), 'median',
                  f'interval ({rows[0].summary.coverage:.0%})', 'range', 'aim', 'verdict')
    for row in rows:
        s = row.summary
        table.add_row(row.what, f'{s.median:.3f}', f'{s.low:.3f} to {s.high:.3f}',
                      f'{s.smallest:.3f} to {s.largest:.3f}',
                      '' if row.aim is None else f'>= {row.aim:g}', row.verdict)
    return table
