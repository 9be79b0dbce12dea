"""Who takes part in `compare`, with which script and which arguments, and how each is run.

A contestant is one of the very scripts that learners read and edit, run as a process of its own
with --report: what is read and what is measured are the same program.
"""

import json
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewgpu.workshop import repository
from fewgpu.workshop.process import run_to_end

PLAIN, GPIPE = 'exercises/mnist_pytorch.py', 'solutions/09_mnist_gpipe.py'


@dataclass(frozen=True)
class Settings:
    """The work that all contestants do. `batchsize` is that of the plain model and of model
    parallel, `pipeline_batchsize` that of the pipelines with micro-batches; `threads` is how many
    cores there are for the plain model on all of them, 0 where devices are no cores."""

    arch: str
    devices: int
    batchsize: int
    pipeline_batchsize: int
    num_microbatches: int
    samples: int
    test_samples: int
    epochs: int
    seed: int
    threads: int


@dataclass(frozen=True)
class Contestant:
    """One way to train the model: its name in tables, and what a sentence calls it. `peer` says
    that it is not ours, so that it may be missing."""

    key: str
    name: str
    prose: str
    script: str
    arguments: tuple[str, ...]
    peer: bool = False


@dataclass(frozen=True)
class Result:
    """What became of a contestant: its report, or a sentence about why there is none."""

    contestant: Contestant
    report: dict[str, Any] | None = None
    failure: str = ''

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def prose(self) -> str:
        return self.contestant.prose


def contestants(settings: Settings, balance: list[int]) -> list[Contestant]:
    """Everyone, in the order of the lesson; all pipelines have the same balance."""
    plain = _shared(settings, settings.batchsize)
    cut = ('--devices', str(settings.devices), '--balance_by', ','.join(map(str, balance)))
    naive = (*plain, *cut, '--num_microbatches', '1', '--checkpoint', 'never')
    piped = (*_shared(settings, settings.pipeline_batchsize), *cut,
             '--num_microbatches', str(settings.num_microbatches), '--checkpoint')
    one = 'one core' if settings.threads else 'one GPU'
    everyone = [Contestant('plain', f'plain, {one}', f'the plain model on {one}', PLAIN, plain)]
    if settings.threads > 1:
        everyone.append(Contestant('plain-all', f'plain, {settings.threads} cores',
                                   f'the plain model on all {settings.threads} cores', PLAIN,
                                   (*plain, '--devices', str(settings.threads))))
    return [*everyone,
            Contestant('model-parallel', 'model parallel', 'model parallel', GPIPE, naive),
            Contestant('gpipe-recompute', 'GPipe, recompute', 'GPipe with recompute', GPIPE,
                       (*piped, 'except_last')),
            Contestant('gpipe', 'GPipe', 'GPipe without recompute', GPIPE, (*piped, 'never')),
            Contestant('torchgpipe', 'torchgpipe', 'torchgpipe', GPIPE,
                       (*piped, 'except_last', '--engine', 'torchgpipe'), peer=True)]


def command_line(contestant: Contestant) -> str:
    """What a learner types, in the clone, to run this contestant alone."""
    return shlex.join(['python', contestant.script, *contestant.arguments])


def run(contestant: Contestant, folder: Path) -> Result:
    """Run the script to its end, its output going where ours goes, and read the report that it
    writes into `folder`.

    KeyboardInterrupt ends the script, too, before it is raised again.
    """
    report = folder / f'{contestant.key}.json'
    report.unlink(missing_ok=True)   # of an earlier run
    code, complaint = run_to_end([sys.executable, str(repository() / contestant.script),
                                  *contestant.arguments, '--report', str(report)])
    if code == 0 and report.exists():
        return Result(contestant, json.loads(report.read_text(encoding='utf-8')))
    if code < 0:   # by the kernel for want of memory, most often: the script could say nothing
        complaint = f'ended by signal {-code} ({signal.Signals(-code).name})'
    return Result(contestant, failure=complaint or f'ended with exit code {code} and no report')


def _shared(settings: Settings, batchsize: int) -> tuple[str, ...]:
    more = {'--epochs': (settings.epochs, 1), '--seed': (settings.seed, 0)}   # value, script's default
    return ('--arch', settings.arch, '--batchsize', str(batchsize),
            '--samples', str(settings.samples), '--test_samples', str(settings.test_samples),
            *(part for flag, (value, default) in more.items() if value != default
              for part in (flag, str(value))))
