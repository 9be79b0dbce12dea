"""What benchmarks on ranks have in common: options, rounds, tables and the file of results.

Every rank measures every contestant once a round; of a step the slowest rank's time counts.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist
from rich.console import Console
from rich.table import Column, Table

from fewgpu.workshop.machine import two_core_efficiency
from tests.bench.ratios import Ratio
from tests.bench.stats import Summary

Taken = dict[str, dict[str, float]]   # what was measured -> contestant -> how much


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    rounds: int
    arch: str      # a ResNet's or VGG's name; some know gpt, too
    batch: int     # samples a rank
    ranks: int
    steps: int     # in a row, for each contestant in each round
    seed: int
    results: str


def measured(options: Options, take: Callable[[], Taken]) -> list[dict]:
    """In every rank: what `take` found, round by round after one to warm up, and what two cores were worth."""
    found = []
    for number in range(options.rounds + 1):
        taken = take()
        efficiency = two_core_efficiency(options.ranks, 1.0) if dist.get_rank() == 0 else None
        dist.barrier()   # the other ranks wait here, using no core
        if number:
            found.append({**taken, 'efficiency': efficiency})
            if dist.get_rank() == 0:
                print(f'round {number}: ' + ', '.join(f'{n} {s:.3f} s' for n, s in taken['seconds'].items()))
    return found


def slowest(ranks: Sequence[list[dict]]) -> list[dict]:
    """The rounds of all ranks as one: the most that any rank took."""
    return [{**{what: {name: max(one[what][name] for one in same) for name in same[0][what]}
                for what in same[0] if what != 'efficiency'}, 'efficiency': same[0]['efficiency']}
            for same in zip(*ranks)]


def show(found: dict, rows: Sequence[Ratio], tables: Sequence[Table], name: str) -> dict:
    """Print, and write the file of this name; what was found, with its ratios."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    found = {**found, 'ratios': [{**asdict(row), 'verdict': row.verdict} for row in rows]}
    for table in (*tables, ratio_table(rows)):
        console.print(table)
    efficiency = Summary.of([measured['efficiency'] for measured in found['rounds']])
    console.print(f'efficiency of {found["options"]["ranks"]} cores: {efficiency.median:.3f} '
                  f'({efficiency.smallest:.3f} to {efficiency.largest:.3f})')
    write(found, found['options']['results'], name, console)
    return found


def write(found: dict, folder: str, name: str, console: Console) -> None:
    """Into a folder, which is made if it is not there."""
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + '\n')
    console.print(f'written: {path}')


def ratio_table(rows: Sequence[Ratio]) -> Table:
    """Paired ratios, against what was aimed at."""
    table = Table(Column('speed ratio, round by round', overflow='fold'), 'median',
                  f'interval ({rows[0].summary.coverage:.0%})', 'range', 'aim', 'verdict')
    for row in rows:
        s = row.summary
        table.add_row(row.what, f'{s.median:.3f}', f'{s.low:.3f} to {s.high:.3f}',
                      f'{s.smallest:.3f} to {s.largest:.3f}',
                      '' if row.aim is None else f'>= {row.aim:g}', row.verdict)
    return table
