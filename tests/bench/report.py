"""What the pipeline benchmark found: tables, a JSON file, a picture."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from fewgpu.simulate import allowed_speed_up
from tests.bench.ratios import ALONE, FEWGPU, PIPELINING, PLAIN, TORCHGPIPE, bound, ratios, seconds
from tests.bench.stats import Summary, paired_ratios
from tests.bench.work import CHECKPOINTS


def show(found: dict, console: Console) -> None:
    """Print the tables."""
    for table in (speeds(found), ratio_table(found), bounds(found), memory(found)):
        console.print(table)
    malloc = 'keeps freed memory' if found['machine']['malloc_keeps_freed_memory'] else 'as it is'
    console.print(f'malloc {malloc} in every process; memory ledger off while speed is measured; '
                  f'the processes of {PIPELINING} used {found["idle_cpu_seconds"]:.3f} s of CPU '
                  f'while others were measured.')


def speeds(found: dict) -> Table:
    """Everybody's samples a second."""
    table = Table(Column('contestant', overflow='fold'), 'recompute', 'samples/s', 'range',
                  'seconds a step', 'x plain', title='Speed: medians of the rounds')
    for name in found['rounds'][0]['seconds']:
        engine, _, mode = name.rpartition(' ')
        if engine == ALONE:
            continue
        taken = seconds(found, name)
        speed = Summary.of([found['options']['batch'] / value for value in taken])
        over = Summary.of(paired_ratios(seconds(found, PLAIN), taken))
        table.add_row(engine, mode, f'{speed.median:.2f}',
                      f'{speed.smallest:.2f} to {speed.largest:.2f}',
                      f'{Summary.of(taken).median:.3f}', f'{over.median:.2f}')
    return table


def ratio_table(found: dict) -> Table:
    """Paired ratios, against what was aimed at."""
    rows = list(ratios(found))
    table = Table(Column('speed ratio, round by round', overflow='fold'), 'recompute', 'median',
                  f'interval ({rows[0].summary.coverage:.0%})', 'range', 'aim', 'verdict',
                  title='Paired ratios')
    for row in rows:
        s = row.summary
        table.add_row(row.what, row.checkpoint, f'{s.median:.3f}', f'{s.low:.3f} to {s.high:.3f}',
                      f'{s.smallest:.3f} to {s.largest:.3f}',
                      '' if row.aim is None else f'>= {row.aim:g}', row.verdict)
    return table


def bounds(found: dict) -> Table:
    """What the schedule allows, and where the time went."""
    m, n = found['options']['chunks'], len(found['balance'])
    median = _medians(found)
    table = Table('', *CHECKPOINTS, title='The simulated bound: medians of the rounds')

    def row(label: str, value: Callable[[str], str]) -> None:
        table.add_row(label, *(value(mode) for mode in CHECKPOINTS))

    for name in found['rounds'][0]['bound'][CHECKPOINTS[1]]['costs']:
        row(f'{name}, alone (ms)', lambda mode: _milliseconds(found, mode, name))
    for label, what in (('all operations alone', 'alone'), ('simulated makespan', 'makespan')):
        row(f'{label} (s)', lambda mode: f'{median(lambda r: r["bound"][mode][what]):.3f}')
    row('simulated speed-up over one device', lambda mode: '{:.3f}'.format(
        median(lambda r: r['bound'][mode]['alone'] / r['bound'][mode]['makespan'])))
    row('textbook speed-up, m n / (m + n - 1)', lambda _: f'{allowed_speed_up(m, n):.3f}')
    row(f'efficiency of {n} cores', lambda _: f'{median(lambda r: r["efficiency"]):.3f}')
    row('bound x efficiency (samples/s)', lambda mode: '{:.2f}'.format(
        found['options']['batch'] / Summary.of(bound(found, mode)).median))
    row('fewgpu: operations beside each other / alone', lambda mode: '{:.3f}'.format(
        median(lambda r: r['busy'][mode] / r['bound'][mode]['alone'])))
    return table


def memory(found: dict) -> Table:
    """Peak bytes of all devices together."""
    table = Table('contestant', 'recompute', 'peak', 'of it parameters and buffers', 'verdict',
                  title='Memory of all devices together (metered apart)')
    peaks = {(row['engine'], row['checkpoint']): row['peak'] for row in found['memory']}
    for row in found['memory']:
        verdict, other = '', peaks.get((TORCHGPIPE, row['checkpoint']))
        if row['engine'] == FEWGPU:
            verdict = ('met: no more than torchgpipe' if row['peak'] <= other else
                       f'fell short: {row["peak"] / other - 1:.1%} more than torchgpipe')
        table.add_row(row['engine'], row['checkpoint'], f'{row["peak"] / 1e6:,.1f} MB',
                      f'{row["parameters"] / 1e6:,.1f} MB', verdict)
    return table


def write(found: dict, folder: Path, console: Console) -> None:
    """bench_pipeline.json and bench_pipeline.png."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(row), 'verdict': row.verdict} for row in ratios(found)]
    path = folder / 'bench_pipeline.json'
    path.write_text(json.dumps({**found, 'ratios': rows}, indent=1) + '\n')
    draw(found, path.with_suffix('.png'))
    console.print(f'written: {path}, {path.with_suffix(".png")}')


def draw(found: dict, path: Path) -> None:
    """Samples a second: a bar to the median, a dot a round."""
    from matplotlib.figure import Figure
    names = [name for name in found['rounds'][0]['seconds'] if not name.startswith(ALONE)]
    speed = {name: [found['options']['batch'] / value for value in seconds(found, name)]
             for name in names}
    for mode in CHECKPOINTS:
        speed[f'bound x efficiency, {mode}'] = [found['options']['batch'] / value
                                                for value in bound(found, mode)]
    figure = Figure(figsize=(8, 0.4 * len(speed) + 1.2), layout='constrained')
    axes = figure.subplots()
    axes.barh(list(speed), [Summary.of(values).median for values in speed.values()],
              color=['0.85' if name.startswith('bound') else 'C0' for name in speed], alpha=0.6)
    for name, values in speed.items():
        axes.plot(values, [name] * len(values), 'k.', markersize=4)
    axes.invert_yaxis()
    axes.set_xlabel(f'samples/s ({found["options"]["arch"]}, batch {found["options"]["batch"]}, '
                    f'{found["options"]["chunks"]} micro-batches)')
    figure.savefig(path, dpi=150)


def _medians(found: dict) -> Callable[[Callable[[dict], float]], float]:
    return lambda value: Summary.of([value(measured) for measured in found['rounds']]).median


def _milliseconds(found: dict, mode: str, name: str) -> str:
    values = [measured['bound'][mode]['costs'].get(name) for measured in found['rounds']]
    return '' if None in values else f'{Summary.of(values).median * 1e3:.1f}'
