"""`./workshop.py compare --all`: every system on the same work and devices, one table and one picture."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from fewgpu import plot
from fewgpu.workshop import machine
from fewgpu.workshop.process import run_to_end
from fewgpu.workshop.systems.sweeps import SWEEPS
from fewgpu.workshop.systems.trainers import SYSTEMS
from fewgpu.workshop.systems.verdicts import SERVERS, conclude, growth
from fewgpu.workshop.systems.work import WARM_UP, Work

NAMES = {key: name for key, (name, _) in SYSTEMS.items()}
STEADY = 0.7   # of a core, and of what one does alone, that each must do beside the others
Found = dict[str, dict[str, Any]]


def compare_all(console: Console, work: Work, out: Path) -> bool:
    """Run every system, show what came of them; did all of them get through?"""
    _introduce(console, work)
    found: Found = {}
    begun, shares = time.perf_counter(), []
    wanted = NAMES | {key: name for key, (name, _) in SWEEPS.items()}
    with tempfile.TemporaryDirectory() as folder:
        for number, (key, name) in enumerate(wanted.items(), 1):
            console.print(f'{number}/{len(wanted)}  [bold]{name}[/]{_left(begun, number - 1, len(wanted))}')
            shares.append(efficiency(work))
            report = _one(console, key, work, Path(folder))
            if report is not None:
                found[key] = report
    console.print()
    console.print(table(found))
    console.print(_caption(work), style='dim')
    _write(found, work, out)
    steady, why = is_steady(shares, len(machine.gpus()), work)
    console.print(why, soft_wrap=True)
    conclude(found, steady)
    console.print(f'\nPicture: {out / "systems.png"}\nFigures: {out / "systems.json"}', soft_wrap=True)
    return found.keys() == wanted.keys()


def _write(found: Found, work: Work, out: Path) -> None:
    picture(found, work).savefig(out / 'systems.png', dpi=150)
    figures = {'work': asdict(work), 'machine': machine.describe(), **found}
    (out / 'systems.json').write_text(json.dumps(figures, indent=1), encoding='utf-8')


def _left(begun: float, done: int, all_: int) -> str:
    """How long the rest takes if it goes on as so far."""
    if not done:
        return ''
    seconds = (time.perf_counter() - begun) / done * (all_ - done)
    return f'   about {seconds / 60:.0f} min left' if seconds >= 90 else f'   about {seconds:.0f} s left'


def _caption(work: Work) -> str:
    balance = ','.join(map(str, work.balance))
    return (f'Batch {work.batch} in {_count(work.chunks, "micro-batch", "es")}, balance {balance}. Busy share: of the '
            'time of a step, in which a device computes (on GPUs only pipelines tell). Staleness: updates between the '
            f'weights of a gradient and its use. Memory was counted in the first {WARM_UP} mini-batches, speed '
            "measured in the others. Accuracy: with batch norm's statistics taken anew over training images, for "
            'everyone alike. Plain and spilled have one of the devices only.\n')


def _count(number: int, what: str, plural: str = 's') -> str:
    return f'{number} {what}{"" if number == 1 else plural}'


def _introduce(console: Console, work: Work) -> None:
    """Say what machine this is."""
    gpus, cores = machine.gpus(), machine.cores()
    console.print(f'[bold]{work.arch}[/] on MNIST, {_count(work.samples, "sample")}, {_count(work.devices, "device")}; '
                  f'{", ".join(gpus) or _count(cores, "core") + ", no GPU"}. Nine systems and three sweeps: some four '
                  'minutes on two quiet cores.')
    if work.pace:
        console.print(f'{_count(work.devices, "device")} on {_count(cores, "core")}: each is paced, and computes at '
                      f'{work.pace:.0%} of the speed of a core, so that all can work at once.')


def efficiency(work: Work) -> float | None:
    """What each of the cores does that compute at once, at this moment, of what one does alone. None on GPUs: it is
    not measured."""
    return None if machine.gpus() else machine.two_core_efficiency(min(work.devices, machine.cores()), seconds=1.0)


def is_steady(shares: Sequence[float | None], gpus: int, work: Work) -> tuple[bool, str]:
    """May conclusions be drawn from times, by an `efficiency` taken before each system, or by the number of GPUs?
    And a sentence that says why."""
    measured = [share for share in shares if share is not None]
    if not measured:
        few = '' if gpus >= work.devices else (' There are fewer of them than devices: no conclusions are drawn from '
                                               'speeds.')
        return gpus >= work.devices, f'Whether other programs used the GPUs meanwhile was not measured.{few}'
    worst = min(measured)
    busy = ('' if worst > STEADY else ' That is little: another program was at work, and no conclusions are drawn from '
                                      'speeds.')
    return worst > STEADY, (f'Threads that compute at once, one a core, got at worst {worst:.0%} of what a quiet core '
                            f'gives to one alone; it was measured before every system.{busy}')


def _one(console: Console, key: str, work: Work, folder: Path) -> dict[str, Any] | None:
    """Run one in a process of its own; its report."""
    given, report = folder / 'work.json', folder / f'{key}.json'
    given.write_text(json.dumps(asdict(work)), encoding='utf-8')
    code, complaint = run_to_end([sys.executable, '-P', '-m', 'fewgpu.workshop.systems.contest', key, str(given),
                                  str(report)])
    if code == 0 and report.exists():
        return json.loads(report.read_text(encoding='utf-8'))
    console.print(f'{key} failed: {complaint or f"exit code {code}"}; the others go on.', style='bold', markup=False)
    return None


def table(found: Found) -> Table:
    """A row a system."""
    shown = Table(title='All systems, the same work and devices', title_justify='left', box=box.SIMPLE_HEAD,
                  padding=0, show_edge=False)   # as narrow as that: whole words within 80 columns
    shown.add_column('', no_wrap=True, min_width=max(map(len, NAMES.values())))   # if narrow, lists of shares wrap
    for heading in ('samples\na second', 'over\nplain', 'busy share, %', 'peak MB\na device', 'stale-\nness', 'loss',
                    'test\nacc.'):
        shown.add_column(heading, justify='right')
    plain = found.get('plain', {}).get('samples_per_second')
    for key, name in NAMES.items():
        if (one := found.get(key)) is None:
            shown.add_row(name, 'failed')
            continue
        speed = one['samples_per_second']
        shown.add_row(name, f'{speed:.1f}', f'{speed / plain:.2f}x' if plain else '-',
                      ' '.join(f'{100 * share:.0f}' for share in one['busy']) or '-',
                      ' '.join(f'{size / 1e6:.0f}' for size in one['peak']), str(one['staleness']),
                      f"{one['loss']:.3f}", f"{one['accuracy']:.1%}")
    return shown


def picture(found: Found, work: Work) -> Figure:
    """Speed and memory of every system; below, the sweeps."""
    figure = plot.Picture(figsize=(13.0, 7.5), layout='constrained')
    figure.suptitle(f'{work.arch} on MNIST, {_count(work.devices, "device")}, batch {work.batch}', x=0.008, ha='left',
                    fontsize=10)
    grid = figure.add_gridspec(2, 8, height_ratios=[1.4, 1.0])
    there = [key for key in NAMES if key in found]
    plot.bars({NAMES[key]: found[key]['samples_per_second'] for key in there}, figure.add_subplot(grid[0, :4]),
              title='Samples a second')
    plot.bars({NAMES[key]: max(found[key]['peak']) / 1e6 for key in there}, figure.add_subplot(grid[0, 4:]),
              title='Peak MB of the fullest device')
    if one := found.get('sweep-chunks'):
        plot.lines({'GPipe': (one['counts'], one['speeds'])}, figure.add_subplot(grid[1, :2]), log='x',
                   title='Micro-batches', x='micro-batches', y='samples/sec')
    if one := found.get('sweep-batch'):
        plot.lines({name: (one['sizes'], one[name]) for name in ('plain', 'pipeline')},
                   figure.add_subplot(grid[1, 2:4]), log='x', title='Batch', x='batch', y='samples/sec')
    if one := found.get('sweep-depth'):
        plot.lines({'a device': (one['depths'], one['per_device'])}, figure.add_subplot(grid[1, 4:6]), log='x',
                   title='Depth (virtual time)', x='stages', y='samples/sec a device')
    plot.lines({name: (SERVERS, [100 * share for share in shares]) for name, shares in growth().items()},
               figure.add_subplot(grid[1, 6:]), log='x', title='Communication (model)', x='machines', y='% of a step')
    return figure


def settle(options: Mapping[str, Any], balance: list[int]) -> Work:
    """The work for this machine: paced where there are more devices than cores."""
    cores, devices = machine.cores(), len(balance)
    pace = None if machine.gpus() or devices <= cores else round(0.8 * cores / devices, 3)
    return Work(devices=devices, balance=tuple(balance), pace=pace, **options)
