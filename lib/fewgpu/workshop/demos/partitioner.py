"""PipeDream's partitioner: stages and their replicas, from a profile published and one measured here"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from matplotlib.figure import Figure
from rich.table import Table

from fewgpu import models, plot
from fewgpu.planner import Chain, Machines, Partition, data_parallel, partition, vgg16_chain
from fewgpu.planner.profiled import profile
from fewgpu.workshop.demos import Show

LINK = 1e9           # bytes a second, of the replay
HERE = 125e6         # between machines like this one: 1 Gbit/s
ROWS = 8             # of a mini-batch measured here
# What the authors' runtime ships for VGG-16, and speed over data parallel in arXiv 1806.03377, table 1,
# and SOSP'19, table 1.
SHIPPED = {4: '3-1', 8: '7-1', 16: '15-1'}
PUBLISHED = {4: '2.13 (A, by 2-1-1)', 8: '2.99 (A) and 5.12 (B, by 7-1)',
             16: "3.00 (A, by 9-5-1-1), in SOSP'19 5.28 (A) and 2.98 (B, by 15-1)"}


def demo(show: Show) -> Figure:
    show.say('The partitioner takes seconds, weights and outputs of every layer and finds the stages, with '
             'replicas, whose slowest is fastest. First the chain that the authors measured for VGG-16 '
             f'(mini-batch 128, links of {LINK / 1e9:g} GB/s), then two models of 28 x 28 images measured '
             'now, on one core, for machines like this one behind 1 Gbit/s. Nothing is run in parallel: '
             'speeds are what the model of costs predicts.')
    replayed, searched = _replay(show)
    here = _here(show)
    _claims(show, replayed, searched, here)
    return _picture(replayed[16])


def _replay(show: Show) -> tuple[dict[int, tuple[Partition, Partition]], float]:
    """Found and data parallel, by machines; and the seconds that the search took."""
    begun = time.perf_counter()
    chain = vgg16_chain()
    clusters = [Machines(machines, LINK) for machines in SHIPPED]
    found = {machines.devices: (partition(chain, machines), data_parallel(chain, machines))
             for machines in clusters}
    searched = time.perf_counter() - begun
    table = _table('VGG-16 as published, cut by the partitioner', 'machines', 'authors\nship')
    for machines, pair in found.items():
        table.add_row(*_row(str(machines), pair), SHIPPED[machines])
    show.table(table)
    show.say('Published, times as fast as data parallel: '
             + '; '.join(f'on {machines} machines {speeds}' for machines, speeds in PUBLISHED.items()) + '.')
    show.say('Published for A: Titan X and 25 Gbit/s, B: V100 and 10 Gbit/s; SOSP\'19 for A: 4 servers of '
             '4 V100 and 10 Gbit/s, B: 2 of 8 and 25 Gbit/s. Here links carry 8 Gbit/s. '
             f'All three searches together took {searched:.2g} s.')
    return found, searched


def _here(show: Show) -> dict[str, tuple[Partition, Partition]]:
    """The same of models measured here."""
    table = _table(f'Measured here, mini-batch {ROWS}, 1 Gbit/s', 'model')
    found = {}
    for name, arch in (('VGG-16', 'vgg16'), ('ResNet-18', 'resnet18')):
        chain = profile(models.build(arch), torch.rand(ROWS, 1, 28, 28), timeout=0.0, device='cpu')
        for count in (2, 4):
            machines = Machines(count, HERE)
            found[f'{name}, {count}'] = pair = partition(chain, machines), data_parallel(chain, machines)
            table.add_row(*_row(f'{name}, {count} machines', pair))
        _note(show, name, chain)
    show.table(table)
    return found


def _note(show: Show, name: str, chain: Chain) -> None:
    last = len(chain) - 1
    show.say(f'{name}: {chain.seconds(0, last):.2f} s a mini-batch on one core, '
             f'{chain.weight_bytes(0, last) / 1e6:.0f} MB of weights in {len(chain)} layers.')


def _table(title: str, first: str, *more: str) -> Table:
    table = Table(title=title, title_justify='left',
                  caption='Slowest stage, data parallel: seconds a mini-batch. Times as '
                  'fast: as data parallel.', caption_justify='left')
    table.add_column(first)
    for heading in ('found', 'layers', 'slowest\nstage (s)', 'set by', 'data paral-\nlel (s)', 'times\nas fast'):
        table.add_column(heading, justify='right')
    for heading in more:
        table.add_column(heading, overflow='fold')
    return table


def _row(name: str, pair: tuple[Partition, Partition]) -> list[str]:
    found, parallel = pair
    return [name, found.config, '-'.join(map(str, found.balance)), f'{found.slowest_seconds:.4f}',
            found.bound, f'{parallel.slowest_seconds:.4f}', f'{_speed(pair):.2f}']


def _speed(pair: tuple[Partition, Partition]) -> float:
    """Over data parallel."""
    return pair[1].slowest_seconds / pair[0].slowest_seconds


def _claims(show: Show, replayed: dict[int, tuple[Partition, Partition]], searched: float,
            here: dict[str, tuple[Partition, Partition]]) -> None:
    configs = {machines: pair[0].config for machines, pair in replayed.items()}
    show.claims.test(
        'C25', finds_what_they_ship(configs), f'from their profile of VGG-16 it finds {", ".join(configs.values())} on '
        f'4, 8 and 16 machines, as the authors ship, in {searched:.2g} s', by='the cost model',
        because='The earlier paper printed 2-1-1 and 9-5-1-1, for other machines and links.')
    speeds = [_speed(pair) for pair in replayed.values()]
    ours = ', '.join(f'{_speed(pair):.2f} ({name} machines)' for name, pair in here.items())
    show.claims.test(
        'C26', is_faster_by_the_model(speeds),
        f'{_listed(speeds)} times data parallel on 4, 8 and 16 machines for '
        f'the published VGG-16; by the profiles measured here: {ours}', by='the cost model',
        because='The factor hangs on weights against compute, and on the link. Data parallel is priced as '
        'replicas that exchange gradients while they compute; a run that waits for them loses more.')
    _faster(show)


def finds_what_they_ship(configs: dict[int, str]) -> bool:
    """C25, by the stages that were found, by machines."""
    return configs == SHIPPED


def is_faster_by_the_model(speeds: Sequence[float]) -> bool:
    """C26, by the speeds over data parallel."""
    return all(1.2 <= speed <= 6.8 for speed in speeds)


def is_shorter_by_faster_gpus(gains: Sequence[float]) -> bool:
    """C27: GPUs twice as fast give PipeDream at least half of what they could; `gains` are speeds over the speeds
    of before."""
    return all(gain >= 1.5 for gain in gains)


def _faster(show: Show) -> None:
    """The published chain on GPUs that compute twice as fast, behind the same links, in both ways."""
    chain = vgg16_chain()
    faster = Chain([replace(layer, seconds=layer.seconds / 2) for layer in chain.layers])
    ours, parallel = ([plan(chain, machines).slowest_seconds / plan(faster, machines).slowest_seconds
                       for machines in (Machines(count, LINK) for count in SHIPPED)]
                      for plan in (partition, data_parallel))
    show.claims.test(
        'C27', is_shorter_by_faster_gpus(ours),
        f'with GPUs twice as fast, PipeDream trains the published VGG-16 {_listed(ours)} times as fast on 4, 8 and 16 '
        f'machines (half of the gain, 1.5 times, is asked for); data parallelism {_listed(parallel)} times',
        by='the cost model',
        because='Only computing gets faster here. Links stay as they are, and where they bound the time already, as in '
                'data parallelism, faster GPUs gain nothing. The published hours, 220 for VGG-16 on 8 Titan X and '
                'under 100 on 8 V100, compare two clusters, whose links differ, too.')


def _listed(speeds: Sequence[float]) -> str:
    return ', '.join(f'{speed:.2f}' for speed in speeds)


def _picture(pair: tuple[Partition, Partition]) -> Figure:
    """Where the time goes on 16 machines; speed by machines."""
    picture = plot.Picture(figsize=(9.0, 3.4), layout='constrained')
    left, right = picture.subplots(1, 2)
    rows = {}
    for name, found in (('data parallel', pair[1]), (pair[0].config, pair[0])):
        for number, stage in enumerate(found.stages):
            where = name if len(found.stages) == 1 else f'{name}: stage {number}'
            rows |= {f'{where}, {part}': 1e3 * getattr(stage, part) for part in ('compute', 'sync', 'link')
                     if getattr(stage, part)}
    plot.bars(rows, left, write='{:.1f} ms', title='VGG-16, 16 machines: ms a mini-batch')
    counts = [1, 2, 4, 8, 12, 16]
    chain = vgg16_chain()
    alone = chain.seconds(0, len(chain) - 1)
    plot.lines({'shared perfectly': (counts, counts),
                **{name: (counts, [alone * plan(chain, Machines(m, LINK)).throughput for m in counts])
                   for name, plan in (('PipeDream', partition), ('data parallel', data_parallel))}},
               right, title='Speed over one machine, predicted', x='machines')
    return picture
