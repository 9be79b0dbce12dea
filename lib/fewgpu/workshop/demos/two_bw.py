"""Two weight versions, one update of delay: PipeDream-2BW between fast and frugal

PipeDream-2BW (arXiv 2006.09503) never flushes either, but lets gradients add up over a mini-batch and
keeps two versions of the weights, whatever the depth. It is held against synchronous training, PipeDream,
GPipe, a flush (1F1B) and model parallelism: losses on MNIST, throughput, memory.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median

import torch
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from torch import nn

from fewgpu import Pipeline, get_devices, plot
from fewgpu.schedule import (Schedule, gpipe, one_f_one_b, pipedream, two_bw, versions_alive, with_recompute,
                             with_updates)
from fewgpu.schedule.long_runs import following
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.demos import WITH_A_RUN, Show
from fewgpu.workshop.digits import Batch, accuracy, mini_batches, network, smooth, unseen_digits
from fewgpu.workshop.noise import Quiet, both, faster

STAGES, ROWS, CHUNKS, RATE, RUN = 4, 64, 4, 0.1, 240
METHODS = ('model parallelism', 'GPipe', 'flush (1F1B)', 'PipeDream', '2BW')
WEIGHTS, STASH, INPUT = 8, 4, 1   # of all stages, in units of memory, for virtual time
Point = tuple[float, float]       # throughput, memory


def demo(show: Show) -> Figure:
    show.say(f'Under 2BW a mini-batch is cut into {CHUNKS} micro-batches and updated once. Micro-batch k, counted '
             f'from 1, takes weight version max(floor((k - 1) / {CHUNKS}) - 1, 0) on every stage, so that two '
             f'versions suffice, and every gradient is one update late.')
    used, kept = versions_used()
    curves, found = trainings(mini_batches(RUN, ROWS))
    virtual = {depth: in_virtual_time(depth) for depth in (4, 8)}
    quiet = Quiet()
    real = measured(quiet)
    show.table(of_trainings(curves, found))
    show.table(of_costs(virtual, real))
    verdicts(show, used, kept, curves, found, virtual, real, quiet)
    return picture(curves, virtual)


def versions_used() -> tuple[list[int], list[int]]:
    """Of micro-batches 1 to 16 on the first stage in a real run, and how many weights each stage held."""
    width, devices = 64, get_devices(STAGES, kind='cpu')
    for device in devices:
        device.meter()
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(STAGES)))
    pipeline = Pipeline(model, [1] * STAGES, schedule='2bw', chunks=CHUNKS, loss_fn=nn.functional.mse_loss,
                        devices=devices, optimizer=partial(torch.optim.SGD, lr=0.1))
    rows = torch.zeros(CHUNKS, width)
    pipeline.train([(rows, rows)] * 4)
    trace = pipeline.trace
    kept = [max(span.live // (4 * width * width) for span in spans if span.op.kind == 'U') for spans in trace.rows]
    return [span.version for span in trace.rows[0] if span.op.kind == 'B'], kept


def trainings(batches: Sequence[Batch]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Losses a mini-batch, and the accuracy at the end, of the same network and samples."""
    curves, found, unseen = {}, {}, unseen_digits()
    for name, schedule, chunks in (('synchronous', '1f1b', CHUNKS), ('2BW', '2bw', CHUNKS),
                                   ('PipeDream', 'pipedream', 1)):
        model = network(STAGES)
        losses = Pipeline(model, [1] * STAGES, schedule=schedule, chunks=chunks,
                          devices=get_devices(STAGES, kind='cpu'), loss_fn=nn.functional.cross_entropy,
                          optimizer=partial(torch.optim.SGD, lr=RATE)).train(batches)
        curves[name], found[name] = [loss.item() for loss in losses], accuracy(model, unseen)
    return curves, found


def runs(depth: int, chunks: int, count: int) -> dict[str, Schedule]:
    """`count` mini-batches by every method; a backward follows a recompute, except without pipeline."""
    flushing: dict[str, Callable[[int, int], Schedule]] = {'GPipe': gpipe, 'flush (1F1B)': one_f_one_b}
    made = {'model parallelism': following([with_updates(gpipe(depth, 1))] * (count * chunks))}
    made |= {name: following([with_updates(with_recompute(make(depth, chunks), 'always'))] * count)
             for name, make in flushing.items()}
    made['PipeDream'] = pipedream(depth, chunks * count)
    made['2BW'] = with_recompute(two_bw(depth, chunks * count, update_every=chunks), 'always')
    return made


def in_virtual_time(depth: int) -> dict[str, Point]:
    """Micro-batches a unit of time, and the most that lives on a device, of eight mini-batches of two
    micro-batches a stage. Stages divide weights, work and stashes; a backward takes two forwards."""
    chunks, count = 2 * depth, 8
    costs = Costs(F=1 / depth, B=2 / depth, weights=WEIGHTS / depth, stash=STASH / depth + INPUT, input=INPUT)
    points = {}
    for name, run in runs(depth, chunks, count).items():
        timeline = simulate(run, costs)
        points[name] = chunks * count / timeline.makespan, max(map(timeline.peak, range(depth)))
    return points


def measured(quiet: Quiet) -> dict[str, Point]:
    """Samples a second on two paced devices (medians of three rounds, in turn), and the fullest one's peak
    in MB, counted by the ledger in a run of its own."""
    chunks, rows, layers = 4, 256, 10
    rounds: dict[str, list[float]] = {name: [] for name in METHODS}
    batch = torch.randn(chunks * rows, 256), torch.randn(chunks * rows, 256)
    plans = {'model parallelism': ('gpipe', 1, 'never'), 'GPipe': ('gpipe', chunks, 'always'),
             'flush (1F1B)': ('1f1b', chunks, 'always'), 'PipeDream': ('pipedream', chunks, 'never'),
             '2BW': ('2bw', chunks, 'always')}
    peaks, made = {}, {}
    for name, (schedule, cut, checkpoint) in plans.items():
        model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(layers)))
        devices = get_devices(2, kind='cpu', pace=0.25)
        made[name] = Pipeline(model, [layers // 2] * 2, schedule=schedule, chunks=cut, checkpoint=checkpoint,
                              devices=devices, loss_fn=nn.functional.mse_loss,
                              optimizer=partial(torch.optim.SGD, lr=0.01))
        for device in devices:
            device.meter()
        made[name].train([batch] * 3)
        peaks[name] = max(device.ledger.peak for device in devices) / 1e6
        for device in devices:
            device.unmeter()
    for _ in range(3):
        quiet.look()
        for name, pipeline in made.items():
            pipeline.train([batch] * 3)
            rounds[name].append(3 * chunks * rows / pipeline.trace.makespan)
    return {name: (median(rounds[name]), peaks[name]) for name in METHODS}


def of_trainings(curves: dict, found: dict) -> Table:
    table = Table(title=f'{STAGES} stages, learning rate {RATE}, {RUN} mini-batches of {ROWS}', title_justify='left')
    for heading in ('', 'mean loss', 'of the last quarter', 'accuracy, unseen'):
        table.add_column(heading, justify='right' if heading else 'left')
    for name, losses in curves.items():
        table.add_row(name, f'{fmean(losses):.3f}', f'{fmean(losses[-RUN // 4:]):.3f}', f'{found[name]:.1%}')
    return table


def of_costs(virtual: dict[int, dict[str, Point]], real: dict[str, Point]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify='left',
                  title='Speed, and memory of the fullest device: by virtual time, and measured on two paced devices',
                  caption='Virtual: micro-batches a unit of time; weights 8, activations 4, inputs 1 a stash. '
                          'Paced: a device computes at a quarter of its speed.', caption_justify='left')
    table.add_column('')
    for heading in (*(f'{depth} virtual\n{what}' for depth in virtual for what in ('speed', 'memory')),
                    '2 paced\nsamples/s', '2 paced\nMB'):
        table.add_column(heading, justify='right')
    for name in METHODS:
        table.add_row(name, *(f'{figure:.{2 - place}f}' for points in virtual.values()
                              for place, figure in enumerate(points[name])),
                      f'{real[name][0]:,.0f}', f'{real[name][1]:.2f}')
    return table


def verdicts(show: Show, used: list[int], kept: list[int], curves: dict, found: dict,
             virtual: dict[int, dict[str, Point]], real: dict[str, Point], quiet: Quiet) -> None:
    deep = versions_alive(pipedream(STAGES, 16))[0]
    show.claims.test('C28', is_one_update_late(used, kept),
                     f'Micro-batches 1 to 16 took versions {", ".join(map(str, used))}. Every stage held '
                     f'{max(kept)} versions, counted in bytes; PipeDream has {deep} on the first.',
                     because='While one version is updated, micro-batches in flight still use the one before it.')
    first, late = ({name: fmean(curves[name][part]) for name in ('2BW', 'synchronous')}
                   for part in (slice(RUN // 4), slice(-RUN // 4, None)))
    show.claims.test(
        'C29', learns_alike(found, late),
        f'After {RUN * ROWS:,} samples: accuracy {found["2BW"]:.1%} against {found["synchronous"]:.1%}; loss of the '
        f'last quarter {late["2BW"]:.3f} against {late["synchronous"]:.3f}.',
        because=f'One update of delay costs a little at the start (first quarter {first["2BW"]:.2f} against '
                f'{first["synchronous"]:.2f}). A small network, one seed, and a learning rate that suits both.')
    points = virtual[8]
    best = {where: fast_and_frugal(points) for where, points in (
        *((f'{depth} devices, simulated', points) for depth, points in virtual.items()), ('2 devices, measured', real))}
    show.claims.test(
        'C30', both(is_fast_or_frugal([*virtual.values()], points), quiet.verdict(none_is_both(real))),
        'Both fastest and smallest: ' + '; '.join(f'{", ".join(names) or "none"} ({where})'
                                                  for where, names in best.items())
        + f'{quiet.note}. Simulated, on eight: PipeDream {points["PipeDream"][0]:.2f} micro-batches a unit in '
        f'{points["PipeDream"][1]:.1f} of memory, 2BW {points["2BW"][0]:.2f} in {points["2BW"][1]:.1f}, the flush '
        f'{points["flush (1F1B)"][0]:.2f} in {points["flush (1F1B)"][1]:.1f}.', by=f'{WITH_A_RUN}the simulator',
        because='2BW, the flush and GPipe recompute here, as the paper does to be frugal: a third more work.')


def is_one_update_late(used: Sequence[int], kept: Sequence[int]) -> bool:
    """C28, by the versions that micro-batches took, from the first on, and those that the stages held."""
    rule = [max(i // CHUNKS - 1, 0) for i in range(len(used))]
    return list(used) == rule and list(kept) == [2] * STAGES


def learns_alike(accuracies: dict[str, float], late: dict[str, float]) -> bool:
    """C29, by the accuracy and by the mean loss of the last quarter, each of 2BW and synchronous."""
    return (abs(accuracies['2BW'] - accuracies['synchronous']) < 0.02
            and abs(late['2BW'] / late['synchronous'] - 1) < 0.1)


def is_fast_or_frugal(everywhere: Sequence[dict[str, Point]], points: dict[str, Point]) -> bool:
    """C30, simulated: no method is both anywhere, and of `points` 2BW lies between the flush and PipeDream."""
    flush, ours, stashing = (points[name] for name in ('flush (1F1B)', '2BW', 'PipeDream'))
    return (not any(map(fast_and_frugal, everywhere))
            and flush[0] < ours[0] <= stashing[0] and flush[1] < ours[1] < stashing[1])


def none_is_both(points: dict[str, Point]) -> bool | None:
    """C30, measured: the method that is the smallest (bytes are counted) is not the fastest, too. None within noise."""
    small = min(points, key=lambda name: (points[name][1], -points[name][0]))
    slower = [faster(points[name][0], points[small][0]) for name in points if name != small]
    if True in slower:
        return True
    return None if None in slower else False


def fast_and_frugal(points: dict[str, Point]) -> list[str]:
    """The methods that are at least as fast as all others, and at least as small."""
    return [name for name in points if dominates(points[name], [points[other] for other in points if other != name])]


def dominates(one: Point, others: Sequence[Point]) -> bool:
    """Is it at least as fast as all the others, and at least as small?"""
    return all(one[0] >= other[0] and one[1] <= other[1] for other in others)


def picture(curves: dict[str, list[float]], virtual: dict[int, dict[str, Point]]) -> Figure:
    figure = plot.Picture(figsize=(9.0, 6.4), layout='constrained')
    above, below = figure.subfigures(2, height_ratios=[3, 2])
    plot.lines({name: ([*range(0, RUN, 5)], smooth(losses)[::5]) for name, losses in curves.items()},
               above.add_subplot(), title='Losses of the same network on the same samples', x='mini-batches',
               y='mean of the last 20')
    fast, small = below.subplots(1, 2)
    plot.bars({name: point[0] for name, point in virtual[8].items()}, fast, write='{:.2f}',
              title='8 devices: micro-batches a unit of time')
    plot.bars({name: point[1] for name, point in virtual[8].items()}, small, write='{:.1f}',
              title='Memory of the fullest device')
    return figure
