"""`./workshop.py compare`: ResNet-50 on MNIST, plainly and as pipelines, side by side.

Every contestant is one of the kit's scripts in a process of its own; this command chooses the
sizes, starts them one after the other, and puts what they report into one table and one picture.
"""

import contextlib
import io
import json
import signal
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.rule import Rule

from fewgpu.workshop import arguments, machine
from fewgpu.workshop.contestants import Contestant, Result, Settings, command_line, contestants, run
from fewgpu.workshop.writable import make_writable

KEYS = ('plain', 'plain-all', 'model-parallel', 'gpipe-recompute', 'gpipe', 'torchgpipe')
FULL = {'batchsize': 256, 'samples': 60_000, 'test_samples': 10_000}
ON_CORES = {'batchsize': 64, 'samples': 256, 'test_samples': 32}   # three minutes on two cores
ALL_SAMPLES = 1024        # of --all
PIPELINE_BATCH_ON_GPUS = 512
INTERRUPTED = 130   # the exit code of a program that Ctrl-C ended


def compare(
    devices: Annotated[int | None, typer.Option(min=2, help='Stages: GPUs, or cores without any '
                                                '(2 to 4, as there are).')] = None,
    arch: Annotated[str | None, typer.Option(
        help='resnet18, resnet50, resnet152 or vgg16 (resnet50; with --all resnet18).')] = None,
    batchsize: Annotated[int | None, typer.Option(
        min=1, help='Of everyone (64 without a GPU; else 256, pipelines 512).')] = None,
    num_microbatches: Annotated[int, typer.Option('--num_microbatches', min=1)] = 8,
    samples: Annotated[int | None, typer.Option(
        min=1, max=60_000, help='To train on (256 without a GPU, else all 60000).')] = None,
    test_samples: Annotated[int | None, typer.Option(
        '--test_samples', min=1, max=10_000, help='(32 without a GPU, else all 10000).')] = None,
    epochs: Annotated[int, typer.Option(min=1, help='Times through the samples.')] = 1,
    balance_by: Annotated[str, typer.Option(
        '--balance_by', help='time, memory, or layers a stage, like 12,10.')] = 'time',
    seed: Annotated[int, typer.Option(help='Of the weights and the order of samples.')] = 0,
    out: Annotated[Path, typer.Option(help='The folder for compare.png and .json.')] = Path('results'),
    only: Annotated[str, typer.Option(help=f'Some contestants: {", ".join(KEYS)}.')] = '',
    every: Annotated[bool, typer.Option(
        '--all', help='All systems of the lectures instead: PipeDream, ZeRO, ...')] = False,
) -> None:
    """Train ResNet-50 on MNIST plainly and as pipelines, and show them side by side."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # ends like Ctrl-C: no one is left
    console = Console(highlight=False)
    wanted, arch = _wanted(only), arch or ('resnet18' if every else 'resnet50')
    if every and (only or epochs > 1):
        raise typer.BadParameter('--all shows every system over one epoch: leave --only and --epochs out')
    layers = _check(arch, balance_by, devices)
    asked = {'batchsize': batchsize, 'samples': samples, 'test_samples': test_samples}
    settings = _settings(devices or len(layers), arch, asked, num_microbatches, epochs, seed)
    if every:
        raise typer.Exit(_all(console, settings, asked, balance_by, layers, out))
    raise typer.Exit(_side_by_side(console, settings, asked, balance_by, layers, out, wanted))


def _side_by_side(console: Console, settings: Settings, asked: dict[str, int | None], balance_by: str,
                  layers: list[int], out: Path, wanted: Sequence[str]) -> int:
    """The scripts of the kit, one after the other; the exit code."""
    make_writable('--out', [out / 'compare.png', out / 'compare.json'], [out, out / 'reports'])
    try:
        facts = _introduce(console, settings, asked)
        balance = _choose_balance(console, settings, balance_by, layers)
    except KeyboardInterrupt:
        return INTERRUPTED
    taking_part = [one for one in contestants(settings, balance) if one.key in wanted]
    results, interrupted = _run_all(console, taking_part, out / 'reports')
    if results:
        _show(console, results, facts, out)
    if interrupted:
        return INTERRUPTED
    return int(any(not one.report and not one.contestant.peer for one in results))


def _wanted(only: str) -> Sequence[str]:
    wanted = [key.strip() for key in only.split(',') if key.strip()]
    if unknown := set(wanted) - set(KEYS):
        raise typer.BadParameter(f"there is no {', '.join(sorted(unknown))}; choose from "
                                 f"{', '.join(KEYS)}, separated by commas")
    return wanted or KEYS


def _check(arch: str, balance_by: str, devices: int | None) -> list[int]:
    """Let the scripts' own flags find what is wrong, before anything is measured. Returns the
    layers of each stage, if they were given."""
    flags = ['--arch', arch, '--balance_by', balance_by]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            given = arguments.parse(None, pipeline=True, arguments=[
                *flags, *(['--devices', str(devices)] if devices else [])]).balance_by
    except SystemExit:
        raise typer.BadParameter(complaint.getvalue().partition(': ')[2].strip()) from None
    return given if isinstance(given, list) else []


def _settings(devices: int | None, arch: str, asked: dict[str, int | None], num_microbatches: int,
              epochs: int, seed: int) -> Settings:
    """The work of this run: what was asked for, and what fits the machine for the rest."""
    gpus, cores = len(machine.gpus()), machine.cores()
    default = FULL if gpus else ON_CORES
    chosen = {name: value or default[name] for name, value in asked.items()}
    pipeline_batch = asked['batchsize'] or (PIPELINE_BATCH_ON_GPUS if gpus else chosen['batchsize'])
    return Settings(arch=arch, devices=devices or max(2, gpus if gpus else min(cores, 4)),
                    pipeline_batchsize=pipeline_batch, num_microbatches=num_microbatches,
                    epochs=epochs, seed=seed, threads=0 if gpus else cores, **chosen)


def _introduce(console: Console, settings: Settings, asked: dict[str, int | None]) -> dict[str, Any]:
    """Say what machine this is, what the devices are and what was made smaller."""
    facts: dict[str, Any] = {**machine.describe(), 'settings': vars(settings)}
    gpus = f", {', '.join(facts['gpus'])}" if facts['gpus'] else ', no GPU'
    console.print(f"[bold]{settings.arch}[/] on MNIST, {settings.samples} samples. Machine: "
                  f"{facts['cores']} cores{gpus}; torch {facts['torch']}.")
    if facts['gpus']:
        if len(facts['gpus']) < settings.devices:
            console.print(f"{settings.devices} stages share {len(facts['gpus'])} GPU: memory is as "
                          'it would be on several, added up; a speed-up is not to be had.')
        facts['core_efficiency'] = None
        return facts
    console.print(f'Without a GPU, {settings.devices} cores are the devices, one core each. So the '
                  'baseline is the plain model on one core; on all cores it runs beside it.')
    if settings.devices > facts['cores']:
        console.print(f"{settings.devices} devices on {facts['cores']} cores take turns: their "
                      'memory can be believed, their speed cannot.')
    if shrunk := [name for name in ON_CORES if asked[name] is None]:
        sizes = ', '.join(f'{name} {ON_CORES[name]}' for name in shrunk)
        full = ' '.join(f'--{name} {FULL[name]}' for name in shrunk)
        console.print(f'Made smaller, to end in minutes: {sizes}. The full size: {full}')
    threads = min(settings.devices, facts['cores'])
    facts['core_efficiency'] = efficiency = machine.two_core_efficiency(threads)
    low = ('' if efficiency > 0.7 else ' That is little: another program is at work, or the cores are '
           'two halves of one.')
    console.print(f'{threads} threads that multiply matrices each reach {efficiency:.0%} of what one '
                  f'reaches alone.{low}')
    return facts


def _choose_balance(console: Console, settings: Settings, balance_by: str,
                    layers: list[int]) -> list[int]:
    """The layers of each stage, the same for all pipelines: `layers`, or measured here."""
    import torch

    from fewgpu.balance import balance_by_size, balance_by_time
    from fewgpu.models import build
    from fewgpu.partition import verify_balance

    torch.manual_seed(settings.seed)
    begun, model = time.perf_counter(), build(settings.arch)
    batch = torch.rand(settings.pipeline_batchsize, 1, 28, 28)
    try:
        if balance_by == 'time':
            balance = balance_by_time(settings.devices, model, batch.chunk(settings.num_microbatches)[0])
        elif balance_by == 'memory':   # three copies: parameters, gradients, momentum
            balance = balance_by_size(settings.devices, model, batch, chunks=settings.num_microbatches,
                                      param_scale=3.0)
        else:
            return verify_balance(model, layers)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    layers_each = ','.join(map(str, balance))
    console.print(f'The same balance for all pipelines, by {balance_by}: {layers_each} layers '
                  f'(measured in {time.perf_counter() - begun:.0f} s).')
    return balance


def _all(console: Console, settings: Settings, asked: dict[str, int | None], balance_by: str, layers: list[int],
         out: Path) -> int:
    """Every system of the lectures; the exit code."""
    from fewgpu.workshop.systems.everyone import compare_all, settle

    sizes = {'samples': asked['samples'] or ALL_SAMPLES, 'test_samples': asked['test_samples'] or 256}
    batch = settings.batchsize
    if batch < settings.devices or sizes['samples'] < 4 * batch:
        raise typer.BadParameter(f'--all measures mini-batches of {batch} rows: give at least {4 * batch} samples, '
                                 'and a batch of at least a row a device')
    make_writable('--out', [out / 'systems.png', out / 'systems.json'], [out])
    try:
        balance = _choose_balance(console, settings, balance_by, layers)
        work = settle({'arch': settings.arch, 'batch': batch, 'chunks': settings.num_microbatches,
                       'seed': settings.seed, **sizes}, balance)
        return 0 if compare_all(console, work, out) else 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _run_all(console: Console, taking_part: Sequence[Contestant],
             reports: Path) -> tuple[list[Result], bool]:
    """The results so far, and whether Ctrl-C ended it."""
    results = []
    for number, contestant in enumerate(taking_part, 1):
        console.print()
        console.print(Rule(f'{number}/{len(taking_part)}  [bold]{contestant.name}[/]', align='left',
                           style='dim'))
        console.print(command_line(contestant), style='dim', soft_wrap=True)
        try:
            results.append(run(contestant, reports))
        except KeyboardInterrupt:
            console.print(f'Interrupted; {contestant.name} was ended.')
            return results, True
        if results[-1].failure:
            console.print(f'{contestant.name} failed; the others go on.', style='bold')
    return results, False


def _show(console: Console, results: Sequence[Result], facts: dict[str, Any], out: Path) -> None:
    """The table, what may be concluded, and the files."""
    from fewgpu.workshop.conclusions import conclusions
    from fewgpu.workshop.picture import draw
    from fewgpu.workshop.table import notes, tables

    plain = next((one for one in results if one.contestant.key == 'plain'), None)
    console.print()
    console.print(tables(results, plain))
    console.print()
    for note in notes(results):
        _write(console, note, style='dim')
    console.print()
    for conclusion in conclusions(results, facts['core_efficiency']):
        _write(console, conclusion, '- ')
    settings = facts['settings']
    heading = (f"{settings['arch']} on MNIST, {settings['samples']} samples; "
               f"{', '.join(facts['gpus']) or str(facts['cores']) + ' cores'}; torch {facts['torch']}")
    stored = {'machine': facts, 'contestants': [
        {'key': one.contestant.key, 'name': one.name, 'command': command_line(one.contestant),
         'failure': one.failure, 'report': one.report} for one in results]}
    (out / 'compare.json').write_text(json.dumps(stored, indent=1), encoding='utf-8')
    draw(results, plain, out / 'compare.png', heading)
    console.print(f"\nPicture: {out / 'compare.png'}. All figures: {out / 'compare.json'}")


def _write(console: Console, text: str, bullet: str = '', style: str = '') -> None:
    """A paragraph, wrapped so that no spaces trail and long lines stay readable."""
    console.print(textwrap.fill(text, min(console.width, 100), initial_indent=bullet,
                                subsequent_indent=' ' * len(bullet)), markup=False, style=style)
