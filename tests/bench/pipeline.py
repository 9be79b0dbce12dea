"""`python -m tests.bench pipeline`: GPipe against its peers, interleaved in one run.

Every round measures every contestant once, so that a slow minute slows all of them, and the machine
itself: what each operation costs alone, and what two cores are worth. All have one intra-op thread
a device, the same weights, mini-batch, micro-batches and cut; the memory ledger is off.
"""

import gc
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torchgpipe
from rich.console import Console

from fewgpu.balance import balance_by_time
from fewgpu.data import load
from fewgpu.device import one_thread
from fewgpu.malloc import keep_freed_memory
from fewgpu.models import build
from fewgpu.workshop.machine import describe, two_core_efficiency
from tests.bench import report
from tests.bench.alone import Alone
from tests.bench.contestants import Fewgpu, Plain, Torchgpipe
from tests.bench.memory import peaks
from tests.bench.processes import Pipelining, processes
from tests.bench.work import CHECKPOINTS, Contestant, Failed, Work, disagreement, rows_each

TOLERANCE = 1e-4   # of gradients that are computed in another order, in float32


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    rounds: int
    arch: str
    batch: int
    chunks: int
    devices: int
    balance: tuple[int, ...]
    seed: int
    results: str


def run(options: Options) -> dict:
    """Measure, print and write the results. Raises Failed if contestants disagree."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    with one_thread():   # also the default of threads that are made inside
        work = prepare(options)
        console.print(f'{options.arch}, batch {work.batch}, {work.chunks} micro-batches, balance '
                      f'{work.balance}: {options.rounds} rounds after one to warm up')
        found = {'options': asdict(options), 'machine': surroundings(), 'balance': work.balance,
                 **compete(work, options.rounds, console)}
        found['memory'] = [asdict(peak) for peak in peaks(work)]
    report.show(found, console)
    report.write(found, Path(options.results), console)
    return found


def prepare(options: Options) -> Work:
    """The network, a mini-batch of MNIST, and the cut that balances the stages by time."""
    rows = rows_each(options.batch, options.chunks)
    torch.manual_seed(options.seed)
    model = build(options.arch)
    inputs, targets = load('train')[:options.batch]
    balance = list(options.balance) or balance_by_time(
        options.devices, model, inputs[:rows], device='cpu', timeout=5.0)
    if len(balance) != options.devices or sum(balance) != len(model) or min(balance) < 1:
        raise ValueError(f'--balance {options.balance} does not share {len(model)} layers out to '
                         f'{options.devices} devices')
    return Work(model, inputs, targets, options.chunks, balance)


def surroundings() -> dict:
    """Where it was measured."""
    return {**describe(), 'torchgpipe': torchgpipe.__version__,
            'malloc_keeps_freed_memory': keep_freed_memory()}


def compete(work: Work, rounds: int, console: Console) -> dict:
    """Let all contestants do the work, `rounds` times in turn, after one round to warm up.

    Returns 'errors' (see `agree`), 'rounds' (see `measure`, one entry a round), and
    'idle_cpu_seconds', the CPU time that the waiting processes of the peer used.
    """
    with processes(work) as peer:
        contestants = [Plain(work), *(kind(work, mode) for kind in (Fewgpu, Torchgpipe)
                                      for mode in CHECKPOINTS),
                       *(Pipelining(peer, mode) for mode in CHECKPOINTS),
                       *(Alone(work, mode) for mode in CHECKPOINTS)]
        found = {'errors': agree(contestants, console), 'rounds': []}
        for number in range(rounds + 1):
            measured = measure(contestants, len(work.balance))
            if number == 0:   # to warm up
                peer.idle_cpu_seconds = 0.0
                continue
            found['rounds'].append(measured)
            console.print(f'round {number}: ' + ', '.join(
                f'{name} {taken:.2f} s' for name, taken in measured['seconds'].items()))
        return {**found, 'idle_cpu_seconds': peer.idle_cpu_seconds}


def agree(contestants: Iterable[Contestant], console: Console) -> dict[str, float]:
    """The error of everybody's gradients against plain's, the first contestant, in a first step.

    Raises Failed if one is too large, or if a device computes with more than one thread.
    """
    errors, reference = {}, None
    for contestant in contestants:
        threads = contestant.threads()
        gradients = contestant.gradients()
        contestant.forget()
        reference = reference or gradients
        name, error = key(contestant), disagreement(gradients, reference)
        if error > TOLERANCE:
            raise Failed(f'{name} computes something else: its gradients are off by {error:.2g} '
                         f'(relative), so its speed means nothing')
        if threads != {1}:
            raise Failed(f'{name} computes with {sorted(threads)} intra-op threads a device, not '
                         f'with one: its speed cannot be compared')
        errors[name] = error
    console.print(f'all gradients agree with those of plain (worst relative error '
                  f'{max(errors.values()):.1e}), one intra-op thread a device')
    return errors


def measure(contestants: Iterable[Contestant], devices: int) -> dict:
    """One round: seconds of everybody's step, what is known of the steps, the machine's cores."""
    seconds, busy, bound = {}, {}, {}
    for contestant in contestants:
        gc.collect()
        seconds[key(contestant)] = contestant.step()
        contestant.forget()
        if isinstance(contestant, Fewgpu):
            busy[contestant.checkpoint] = contestant.busy()
        if isinstance(contestant, Alone):
            bound[contestant.checkpoint] = {
                'makespan': contestant.simulated().makespan,
                'alone': sum(map(contestant.cost, contestant.schedule)),
                'costs': contestant.costs()}
    return {'seconds': seconds, 'busy': busy, 'bound': bound,
            'efficiency': two_core_efficiency(devices)}


def key(contestant: Contestant) -> str:
    """Names a contestant: 'fewgpu except_last'."""
    return f'{contestant.engine} {contestant.checkpoint}'
