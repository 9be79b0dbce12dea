"""The command line: `python -m tests.bench pipeline --help`, from the folder of the clone."""

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer import Option

app = typer.Typer(help='Benchmarks of the kit against its peers.', no_args_is_help=True,
                  add_completion=False, pretty_exceptions_enable=False)
app.callback()(lambda: None)   # a benchmark is always named, also while there is only one


class Switch(StrEnum):
    """On or off."""

    on = 'on'
    off = 'off'


@app.command()
def pipeline(
    rounds: Annotated[int, Option(min=1, help='Measured rounds, after one to warm up.')] = 5,
    arch: Annotated[str, Option(help='resnet18, resnet50, resnet152 or vgg16.')] = 'resnet50',
    batch: Annotated[int, Option(min=1, help='Samples in a mini-batch.')] = 64,
    chunks: Annotated[int, Option(min=1, help='Micro-batches.')] = 8,
    devices: Annotated[int, Option(min=2, help='Virtual devices: one core each.')] = 2,
    balance: Annotated[str, Option(help="Layers per stage, '9,13'; measured by default.")] = '',
    malloc: Annotated[Switch, Option(help='Keep freed memory, in every process.')] = Switch.on,
    seed: Annotated[int, Option(help='Of the weights.')] = 0,
    results: Annotated[str, Option(help='Folder for the JSON file and picture.')] = 'results',
) -> None:
    """GPipe against plain, torchgpipe, torch.distributed.pipelining and the simulated bound.

    Takes some eight minutes with the defaults on two cores; leave the machine alone meanwhile.
    """
    # Read when fewgpu is imported, here and in the processes that inherit it.
    os.environ['FEWGPU_MALLOC'] = '1' if malloc is Switch.on else '0'
    from tests.bench.pipeline import Options, run
    from tests.bench.work import Failed
    try:
        layers = tuple(int(part) for part in balance.split(',') if part.strip())
        run(Options(rounds, arch, batch, chunks, devices, layers, seed, results))
    except (ValueError, Failed) as error:
        sys.exit(f'{error}')


@app.command('data_parallel')
def data_parallel(
    rounds: Annotated[int, Option(min=1, help='Measured rounds, after one to warm up.')] = 9,
    arch: Annotated[str, Option(help='resnet18, resnet50, resnet152 or vgg16.')] = 'resnet18',
    batch: Annotated[int, Option(min=1, help='Samples a rank.')] = 16,
    ranks: Annotated[int, Option(min=2, help='Processes: one core each.')] = 2,
    steps: Annotated[int, Option(min=1, help='Steps of each contestant in a round.')] = 2,
    malloc: Annotated[Switch, Option(help='Keep freed memory, in every process.')] = Switch.on,
    seed: Annotated[int, Option(help='Of the weights.')] = 0,
    results: Annotated[str, Option(help='Folder for the JSON file.')] = 'results',
) -> None:
    """DataParallel against torch's DDP, the naive version and no communication at all."""
    os.environ['FEWGPU_MALLOC'] = '1' if malloc is Switch.on else '0'
    from tests.bench.data_parallel import run
    _on_ranks(run, rounds, arch, batch, ranks, steps, seed, results)


@app.command()
def schedules(
    rounds: Annotated[int, Option(min=1, help='Measured rounds, after one to warm up.')] = 7,
    arch: Annotated[str, Option(help='resnet18, resnet50, resnet152 or vgg16.')] = 'resnet50',
    batch: Annotated[int, Option(min=1, help='Samples in a mini-batch.')] = 32,
    chunks: Annotated[int, Option(min=2, help='Micro-batches.')] = 8,
    results: Annotated[str, Option(help='Folder for the JSON file.')] = 'results',
) -> None:
    """GPipe and 1F1B on two ranks against torch.distributed.pipelining; zero bubble against 1F1B."""
    os.environ['FEWGPU_MALLOC'] = '1'
    from tests.bench.schedules import run
    run(rounds, arch, batch, chunks, results)


@app.command()
def systems(
    rounds: Annotated[int, Option(min=1, help='Measured rounds, after one to warm up.')] = 9,
    arch: Annotated[str, Option(help='resnet18, resnet50, resnet152, vgg16 or gpt.')] = 'resnet18',
    batch: Annotated[int, Option(min=1, help='Samples a rank.')] = 16,
    ranks: Annotated[int, Option(min=2, help='Processes: one core each.')] = 2,
    steps: Annotated[int, Option(min=1, help='Steps of each contestant in a round.')] = 2,
    seed: Annotated[int, Option(help='Of the weights.')] = 0,
    results: Annotated[str, Option(help='Folder for the JSON file.')] = 'results',
) -> None:
    """ZeRO 1, 2, 3 against ZeroRedundancyOptimizer and FSDP2, DataParallel against DDP."""
    os.environ['FEWGPU_MALLOC'] = '1'
    from tests.bench.systems import run
    _on_ranks(run, rounds, arch, batch, ranks, steps, seed, results)


def _on_ranks(run: Callable, *asked: Any) -> None:
    """Run it; what cannot be compared ends with a sentence."""
    from tests.bench.on_ranks import Options
    from tests.bench.work import Failed
    try:
        run(Options(*asked))
    except (ValueError, Failed) as error:
        sys.exit(f'{error}')


if __name__ == '__main__':
    app(prog_name='python -m tests.bench')
