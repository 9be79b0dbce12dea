"""`python -m tests.bench schedules`: pipelines on two ranks against torch.distributed.pipelining.

Both run in the same two processes, in turn, on the same layers, with the same micro-batches and
weights: a step of one, a step of the other, round after round. The cut is ours, balanced by time;
the peer is measured with as many layers in each stage, too.
"""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

from fewgpu import Pipeline, launch
from fewgpu.balance import balance_by_time
from fewgpu.data import load
from fewgpu.device import one_thread
from fewgpu.ledger import Counting, Ledger
from fewgpu.models import build
from fewgpu.workshop.machine import describe, two_core_efficiency
from tests.bench import paced
from tests.bench.on_ranks import write
from tests.bench.stats import Summary, paired_ratios
from tests.bench.work import Failed, disagreement

SCHEDULES = ('gpipe', '1f1b')
PEER, OURS = 'torch.distributed.pipelining', 'fewgpu'


@dataclass(frozen=True)
class Job:
    """What both train: a network, a mini-batch, how it is cut."""

    name: str
    model: nn.Sequential
    inputs: torch.Tensor
    targets: torch.Tensor
    chunks: int
    halves: list[int]      # as many layers in each stage
    balance: list[int]     # as much time in each stage


def jobs(arch: str, batch: int, chunks: int) -> list[Job]:
    """A ResNet, and a network so small that messages are all there is."""
    torch.manual_seed(0)
    model = build(arch)
    inputs, targets = load('train')[:batch]
    balance = balance_by_time(2, model, inputs[:batch // chunks], device='cpu', timeout=5.0)
    tiny = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
    return [Job(arch, model, inputs, targets, chunks, _halves(model), balance),
            Job('tiny', tiny, torch.rand(batch, 16), torch.randint(16, (batch,)), chunks,
                _halves(tiny), _halves(tiny))]


def _halves(model: nn.Sequential) -> list[int]:
    return [len(model) // 2, len(model) - len(model) // 2]


def contest(job: Job, rounds: int, repeat: int) -> dict:
    """On each of two ranks: seconds (start, end) of every contestant's steps, and peak bytes."""
    contestants = {f'{name} {schedule}': make(job, schedule) for schedule in SCHEDULES
                   for name, make in ((OURS, partial(_ours, cut=job.balance)),
                                      (PEER, partial(_peer, cut=job.balance)),
                                      (f'{PEER}, halves', partial(_peer, cut=job.halves)))}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    of_cut: dict[int, dict[str, torch.Tensor]] = {}   # gradients by the number of layers here
    for name, (step, module, _) in contestants.items():   # to warm up
        module.zero_grad()
        step()
        _verify(name, module, of_cut.setdefault(len(module), {}))
    for _ in range(rounds):
        for name, (step, module, _) in contestants.items():
            module.zero_grad()
            gc.collect()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(repeat):
                step()
            seconds[name].append((start, time.perf_counter()))
    peaks = {name: peak() for name, (_, _, peak) in contestants.items()}
    return {'seconds': seconds, 'peaks': peaks}


def _verify(name: str, module: nn.Module, first: dict[str, torch.Tensor]) -> None:
    """Raises Failed if the gradients are not those of the first contestant with the same cut."""
    found = {key: parameter.grad.clone() for key, parameter in module.named_parameters()}
    first = first or (first.update(found) or found)
    if (error := disagreement(dict(enumerate(found.values())), dict(enumerate(first.values())))) > 1e-3:
        raise Failed(f'{name} computes something else: its gradients are off by {error:.2g} (relative), '
                     f'so its speed means nothing')


def _ours(job: Job, schedule: str, cut: list[int]) -> tuple[Callable, nn.Module, Callable]:
    pipeline = Pipeline(job.model, cut, schedule=schedule, chunks=job.chunks,
                        loss_fn=nn.functional.cross_entropy)
    step = partial(pipeline.step, job.inputs, job.targets)

    def peak() -> int:
        pipeline.module.zero_grad()
        ledger = pipeline.devices[0].meter()
        step()
        pipeline.devices[0].unmeter()
        return ledger.peak
    return step, pipeline.module, peak


def _peer(job: Job, schedule: str, cut: list[int]) -> tuple[Callable, nn.Module, Callable]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    rank = dist.get_rank()
    module = job.model[sum(cut[:rank]):sum(cut[:rank + 1])]
    stage = PipelineStage(module, rank, 2, torch.device('cpu'))
    made = {'gpipe': ScheduleGPipe, '1f1b': Schedule1F1B}[schedule](
        stage, job.chunks, loss_fn=nn.functional.cross_entropy)
    inputs = [job.inputs] if rank == 0 else []
    targets = {'target': job.targets} if rank == 1 else {}
    step = partial(made.step, *inputs, **targets, return_outputs=False)

    def peak() -> int:
        module.zero_grad()
        ledger = Ledger()
        ledger.adopt([*module.parameters(), *module.buffers()])
        with Counting(ledger):
            step()
        return ledger.peak
    return step, module, peak


def measure(job: Job, rounds: int, repeat: int) -> dict:
    """Seconds a step of every contestant in every round, and peak bytes of all ranks together."""
    found = launch(contest, 2, args=(job, rounds, repeat))
    seconds = {name: [(max(end for _, end in pair) - min(start for start, _ in pair)) / repeat
                      for pair in zip(*(one['seconds'][name] for one in found))]
               for name in found[0]['seconds']}
    return {'seconds': seconds,
            'peaks': {name: [one['peaks'][name] for one in found] for name in seconds}}


def run(rounds: int, arch: str, batch: int, chunks: int, results: str) -> dict:
    """Measure, print, and write bench_schedules.json."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with one_thread():
        found = {'machine': describe(), 'efficiency': two_core_efficiency(2)}
        for job in jobs(arch, batch, chunks):
            found[job.name] = measure(job, rounds, repeat=50 if job.name == 'tiny' else 1)
            show(job, found[job.name], console)
    found['paced'] = paced.run(rounds, pace=0.25, width=384, console=console)
    console.print(f'efficiency of two cores: {found["efficiency"]:.3f}')
    write(found, results, 'bench_schedules.json', console)
    return found


def show(job: Job, found: dict, console: Console) -> None:
    """A row a contestant, and the ratios of the same rounds."""
    table = Table('contestant', 'samples/s', 'ms a step', 'time / peer [interval]', 'peak MB a rank',
                  title=f'{job.name}, batch {len(job.inputs)} in {job.chunks} micro-batches, '
                        f'cut {job.balance}, by layers {job.halves}')
    for name, taken in found['seconds'].items():
        schedule = name.split()[-1]
        ratio = Summary.of(paired_ratios(taken, found['seconds'][f'{PEER} {schedule}']))
        median = Summary.of(taken).median
        table.add_row(name, f'{len(job.inputs) / median:.1f}', f'{median * 1e3:.2f}',
                      f'{ratio.median:.3f} [{ratio.low:.3f} to {ratio.high:.3f}]',
                      ' + '.join(f'{peak / 1e6:.1f}' for peak in found['peaks'][name]))
    console.print(table)
