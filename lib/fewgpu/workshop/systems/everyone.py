"""`./workshop.py compare --all`: every system on the same work and devices, one table and one picture."""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from fewgpu import plot
from fewgpu.planner.cluster import preset
from fewgpu.planner.growth import communication_share
from fewgpu.planner.known import known
from fewgpu.workshop import machine
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.process import run_to_end
from fewgpu.workshop.systems.work import Work

KEYS = ('plain', 'data-parallel', 'model-parallel', 'gpipe', '1f1b', 'pipedream', '2bw', 'zero', 'spilled')
NAMES = ('plain, one device', 'data parallel', 'model parallel', 'GPipe', '1F1B', 'PipeDream', 'PipeDream-2BW', 'ZeRO-3',
         'spilled (Hydra)')
SWEEPS = {'sweep-chunks': 'more micro-batches', 'sweep-batch': 'larger batches', 'sweep-depth': 'deeper pipelines'}
Found = dict[str, dict[str, Any]]
SERVERS = (1, 2, 4, 8, 16)                     # of which the cost model tells the share of communication
GROWING = ('alexnet', 'vgg16', 'resnet50')


def compare_all(console: Console, work: Work, out: Path) -> bool:
    """Run every system, show what came of them; did all of them get through?"""
    steady = _introduce(console, work)
    found: Found = {}
    wanted = dict(zip(KEYS, NAMES)) | SWEEPS
    with tempfile.TemporaryDirectory() as folder:
        for number, (key, name) in enumerate(wanted.items(), 1):
            console.print(f'{number}/{len(wanted)}  [bold]{name}[/]')
            report = _one(console, key, work, Path(folder))
            if report is not None:
                found[key] = report
    console.print()
    console.print(table(found))
    console.print(f'Batch {work.batch} in {work.chunks} micro-batches, balance {",".join(map(str, work.balance))}; staleness: '
                  'updates between the weights of a gradient and its use. Memory was counted in the first two '
                  'mini-batches, speed measured in the others. Spilled: one of the devices only.\n', style='dim')
    picture(found, work).savefig(out / 'systems.png', dpi=150)
    (out / 'systems.json').write_text(json.dumps({'work': asdict(work), 'machine': machine.describe(), **found}, indent=1),
                                      encoding='utf-8')
    conclude(found, steady)
    console.print(f'\nPicture: {out / "systems.png"}\nFigures: {out / "systems.json"}', soft_wrap=True)
    return found.keys() == wanted.keys()


def _introduce(console: Console, work: Work) -> bool:
    """Say what machine this is; may conclusions be drawn from times?"""
    gpus, cores = machine.gpus(), machine.cores()
    console.print(f'[bold]{work.arch}[/] on MNIST, {work.samples} samples, {work.devices} devices; '
                  f'{", ".join(gpus) or f"{cores} cores, no GPU"}. Nine systems and three sweeps: some four minutes on two '
                  'quiet cores.')
    if work.pace:
        console.print(f'{work.devices} devices on {cores} cores: each is paced, and computes at {work.pace:.0%} of the '
                      'speed of a core, so that all can work at once.')
    if gpus:
        return len(gpus) >= work.devices
    threads = min(work.devices, cores)
    efficiency = machine.two_core_efficiency(threads)
    busy = '' if efficiency > 0.7 else ' That is little: another program is at work, and no conclusions are drawn from speeds.'
    console.print(f'{threads} threads that multiply matrices each reach {efficiency:.0%} of what one reaches alone.{busy}')
    return efficiency > 0.7


def _one(console: Console, key: str, work: Work, folder: Path) -> dict[str, Any] | None:
    """Run one in a process of its own; its report."""
    given, report = folder / 'work.json', folder / f'{key}.json'
    given.write_text(json.dumps(asdict(work)), encoding='utf-8')
    code, complaint = run_to_end([sys.executable, '-P', '-m', 'fewgpu.workshop.systems.contest', key, str(given), str(report)])
    if code == 0 and report.exists():
        return json.loads(report.read_text(encoding='utf-8'))
    console.print(f'{key} failed: {complaint or f"exit code {code}"}; the others go on.', style='bold', markup=False)
    return None


def table(found: Found) -> Table:
    """A row a system."""
    shown = Table(title='All systems, the same work and devices', title_justify='left', box=box.SIMPLE_HEAD, padding=(0, 1))
    shown.add_column('')
    for heading in ('samples\na second', 'over\nplain', 'busy share, %', 'peak MB\na device', 'stale-\nness', 'loss', 'test\nacc.'):
        shown.add_column(heading, justify='right')
    plain = found.get('plain', {}).get('samples_per_second')
    for key, name in zip(KEYS, NAMES):
        if (one := found.get(key)) is None:
            shown.add_row(name, 'failed')
            continue
        shown.add_row(name, f"{one['samples_per_second']:.1f}", f"{one['samples_per_second'] / plain:.2f}x" if plain else '-',
                      ' '.join(f'{100 * share:.0f}' for share in one['busy']),
                      ' '.join(f'{size / 1e6:.0f}' for size in one['peak']), str(one['staleness']),
                      f"{one['loss']:.3f}", f"{one['accuracy']:.1%}")
    return shown


def conclude(found: Found, steady: bool) -> None:
    """What the figures say about the claims of the lectures; those of speed only on a `steady` machine."""
    claims = Claims()
    if {'model-parallel', '1f1b', 'data-parallel', 'gpipe', '2bw'} <= found.keys():
        speed = {key: one['samples_per_second'] for key, one in found.items() if key in KEYS}
        piped = {key: speed[key] for key in ('gpipe', '1f1b', 'pipedream', '2bw') if key in speed}
        best = max(piped, key=piped.get)
        others = [speed[key] for key in ('model-parallel', 'data-parallel', 'zero') if key in speed]
        claims.test('C46', piped[best] > max(others) if steady else None,
                    f'{best} {piped[best]:.1f} samples/sec, model parallel {speed["model-parallel"]:.1f}, data parallel '
                    f'{speed["data-parallel"]:.1f}; busy {_mean(found[best]["busy"]):.0%}, '
                    f'{_mean(found["model-parallel"]["busy"]):.0%}, {_mean(found["data-parallel"]["busy"]):.0%}',
                    because='Here the model fits every device, and gradients stay in one machine, which is when data parallelism '
                            '(and ZeRO, which is one) does best.')
    if chunks := found.get('sweep-chunks'):
        best = max(range(len(chunks['counts'])), key=chunks['speeds'].__getitem__)
        claims.test('C15', 0 < best < len(chunks['counts']) - 1 if steady else None, ', '.join(
            f'{count}: {speed:.1f}' for count, speed in zip(chunks['counts'], chunks['speeds'])) + ' samples/sec by micro-batches')
    if sizes := found.get('sweep-batch'):
        claims.test('C22', sizes['pipeline_bytes'][-1] < sizes['plain_bytes'][-1],
                    f'batch {sizes["sizes"][-1]}: the fullest device holds {sizes["pipeline_bytes"][-1] / 1e6:.0f} MB as a '
                    f'pipeline, {sizes["plain_bytes"][-1] / 1e6:.0f} MB plainly')
        deep = found.get('sweep-depth')
        if deep:
            claims.test('C32', None if not steady else sizes['pipeline'][-1] > sizes['pipeline'][0] and deep['per_device'][-1] < deep['per_device'][0]
                        and deep['bytes'][-1] < deep['bytes'][0],
                        f'pipeline: {sizes["pipeline"][0]:.1f} samples/sec at batch {sizes["sizes"][0]}, '
                        f'{sizes["pipeline"][-1]:.1f} at {sizes["sizes"][-1]}; a device of {deep["depths"][-1]} stages does '
                        f'{deep["per_device"][-1] / deep["per_device"][0]:.0%} of what it does alone, and holds '
                        f'{deep["bytes"][-1] / deep["bytes"][0]:.0%} of the bytes (virtual time)')


    shares = growth()
    claims.test('C05', all(first <= second for each in shares.values() for first, second in zip(each, each[1:])),
                '; '.join(f'{name} {each[0]:.0%} of a step with one GPU, {each[1]:.0%} with 2, {each[-1]:.0%} with '
                          f'{SERVERS[-1]}' for name, each in shares.items()), by='the cost model',
                because='One V100 a machine, 25 Gbit/s between them, 32 images a GPU, no overlap with the backward.')


def growth() -> dict[str, list[float]]:
    """C05, C26: by the cost model, the share of a step that data parallelism spends on communication."""
    cluster = preset('v100-16', per_server=1)
    return {name: communication_share(known(name), cluster, SERVERS) for name in GROWING}


def picture(found: Found, work: Work) -> Figure:
    """Speed and memory of every system; below, the sweeps."""
    figure = plot.Picture(figsize=(13.0, 7.5), layout='constrained')
    figure.suptitle(f'{work.arch} on MNIST, {work.devices} devices, batch {work.batch}', x=0.008, ha='left', fontsize=10)
    grid = figure.add_gridspec(2, 8, height_ratios=[1.4, 1.0])
    names = dict(zip(KEYS, NAMES))
    there = [key for key in KEYS if key in found]
    plot.bars({names[key]: found[key]['samples_per_second'] for key in there}, figure.add_subplot(grid[0, :4]),
              title='Samples a second')
    plot.bars({names[key]: max(found[key]['peak']) / 1e6 for key in there}, figure.add_subplot(grid[0, 4:]),
              title='Peak MB of the fullest device')
    if one := found.get('sweep-chunks'):
        plot.lines({'GPipe': (one['counts'], one['speeds'])}, figure.add_subplot(grid[1, :2]), log='x',
                   title='Micro-batches', x='micro-batches', y='samples/sec')
    if one := found.get('sweep-batch'):
        plot.lines({name: (one['sizes'], one[name]) for name in ('plain', 'pipeline')}, figure.add_subplot(grid[1, 2:4]),
                   log='x', title='Batch', x='batch', y='samples/sec')
    if one := found.get('sweep-depth'):
        plot.lines({'a device': (one['depths'], one['per_device'])}, figure.add_subplot(grid[1, 4:6]), log='x',
                   title='Depth (virtual time)', x='stages', y='samples/sec a device')
    plot.lines({name: (SERVERS, [100 * share for share in shares]) for name, shares in growth().items()},
               figure.add_subplot(grid[1, 6:]), log='x', title='Communication (model)', x='machines', y='% of a step')
    return figure


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def settle(options: Mapping[str, Any], balance: list[int]) -> Work:
    """The work for this machine: paced where there are more devices than cores."""
    cores, devices = machine.cores(), len(balance)
    pace = None if machine.gpus() or devices <= cores else round(0.8 * cores / devices, 3)
    return Work(devices=devices, balance=tuple(balance), pace=pace, **options)
