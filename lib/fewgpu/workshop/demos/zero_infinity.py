"""A model ten times the device trains from disk: prefetch, slices, tiles, and what it costs

ZeRO-Infinity (arXiv 2104.07857) on a virtual device, and on two ranks for the slices."""

import copy
import statistics
import time
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

from fewgpu import plot
from fewgpu.device import Device, one_thread
from fewgpu.infinity import (
    GB, ait_of_activations, ait_of_optimizer_states, ait_of_parameters, efficiency, figure_2b)
from fewgpu.launch import launch
from fewgpu.offload import DiskStore
from fewgpu.offload.offloaded import Offloaded, Times
from fewgpu.workshop.demos import Show, headed
from fewgpu.workshop.measured.zero_infinity import (
    LAYERS, ROWS, WIDTH, bandwidth_for, chain, offloaded, read_in_both_ways, resident_step, tiled_step)
from fewgpu.workshop.noise import Quiet, both, faster

LOAD = 0.15         # where transfers are to be hidden: what the weights of a layer take, of its forward


def demo(show: Show) -> Figure:
    """Five claims, and the table of bandwidths."""
    larger_than_the_device(show)
    waiting = prefetch(show)
    price(show)
    slices_against_broadcast(show)
    peaks = tiles(show)
    bandwidths(show)
    return picture(waiting, peaks)


def larger_than_the_device(show: Show) -> None:
    """Equal to the plain model, with all states on disk. What lives on the device is counted, and not limited."""
    module, x, y = chain(80, 96), torch.randn(3, 96), torch.randn(3, 96)
    size = sum(parameter.nbytes for parameter in module.parameters())
    plain, device = copy.deepcopy(module), Device('cpu')
    device.meter()
    with DiskStore() as store:
        model = Offloaded(module, optimizer=torch.optim.Adam, loss_fn=F.mse_loss, device=device, store=store)
        optimizer = torch.optim.Adam(plain.parameters())
        for _ in range(3):
            with one_thread():
                optimizer.zero_grad()
                F.mse_loss(plain(x), y).backward()
                optimizer.step()
            model.step(x, y)
        same = all(torch.equal(value, model.state_dict()[name]) for name, value in plain.state_dict().items())
        stored = sum(path.stat().st_size for path in store.folder.glob('*.tensors'))
    peak = device.ledger.peak
    show.say(f'A network of 80 layers has {size / 1e6:.2f} MB of weights. They and Adam\'s states are on disk, the '
             f'real one ({stored / 1e6:.1f} MB), visit the device layer by layer, and are updated on the host. After '
             f'three steps the weights are '
             f'{"those of the plain model, to the last bit" if same else "NOT those of the plain model"}; the '
             f'device, which counts, never held more than {peak / 1e6:.2f} MB: one with '
             f'memory for {peak / size:.0%} of the weights would do.')
    show.claims.test('C40', lives_elsewhere(same, size, stored, peak),
                     f'{stored / 1e6:.1f} MB of model states on disk; {peak / 1e6:.2f} MB at once '
                     f'on the device trained them as the plain model, {"bit for bit" if same else "but otherwise"}',
                     because='Activations and gradients of the layers in flight stay on the device.')


def lives_elsewhere(same: bool, size: int, stored: int, peak: int) -> bool:
    """C40: the same as the plain model; weights (`size` bytes) and Adam's two states are stored; and the device
    holds at most a tenth of the weights at once."""
    return same and stored >= 3 * size and 10 * peak <= size


def waits_less(share: dict[int, float]) -> bool | None:
    """C42, by the share of a forward that the device waits, by how many layers are loaded ahead."""
    return both(faster(share[0], share[1]), faster(share[1], share[3]))   # who waits longer is slower


def is_cheap(on_host: float, resident: float) -> bool:
    """C44, by seconds of a step that recomputes, offloaded and all on the device."""
    return on_host <= 1.02 * resident


def beats_broadcast(alike: bool, ratio: float) -> bool:
    """C41, by how many times as fast two ranks load slices."""
    return alike and ratio > 1.5


def trains_in_tiles(fitting: Sequence[int], alike: bool) -> bool:
    """C43: as a whole (1) the layer does not fit, in some number of tiles it does, with the same result."""
    return 1 not in fitting and bool(fitting) and alike


def prefetch(show: Show) -> dict[str, float]:
    """The share of a forward that the device waits, in per cent, by depth."""
    x = torch.randn(ROWS, WIDTH)
    bandwidth = bandwidth_for(0.8, x)
    models = {depth: offloaded(bandwidth, depth) for depth in (0, 1, 3)}
    times: dict[int, list[Times]] = {depth: [] for depth in models}
    quiet = Quiet()
    for _ in range(4):   # in turn, so that all see the same machine
        quiet.look()
        for depth, model in models.items():
            model.evaluate(x)
            times[depth].append(model.times)
    share = {depth: statistics.median(each.share for each in found[1:]) for depth, found in times.items()}
    show.claims.test('C42', quiet.verdict(waits_less(share)),
                     f'of a forward of {LAYERS} layers, each of which takes 0.8 of its computing on a simulated '
                     f'disk and as much on the link, the device waits {share[0]:.0%} with nothing loaded ahead, '
                     f'{share[1]:.0%} with one layer ahead (both in turn), {share[3]:.0%} with three (at the same '
                     f'time){quiet.note}',
                     because='The first layer is waited for in any case.')
    return {f'{depth} ahead': 100 * each for depth, each in share.items()}


def price(show: Show) -> None:
    """What it costs to offload, where transfers fit behind computing."""
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    model = offloaded(bandwidth_for(LOAD, x), depth=3)
    kept = chain(LAYERS, WIDTH)
    resident = partial(resident_step, kept, torch.optim.Adam(kept.parameters()), x, y)
    ways = {'all on the device': partial(resident, recomputed=False),
            'the same, recomputed': partial(resident, recomputed=True), 'offloaded': lambda: model.step(x, y)}
    took, quiet = {name: [] for name in ways}, Quiet()
    for _ in range(6):
        quiet.look()
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            took[name].append(time.perf_counter() - start)
    plain, base, ours = (statistics.median(found[1:]) for found in took.values())   # the first warms up
    table = headed(f'{LAYERS} layers; simulated disk and link: {LOAD:g} of a forward each', '', 'a step',
                   'against recompute\non the device')
    for name, seconds in zip(ways, (plain, base, ours)):
        table.add_row(name, f'{1e3 * seconds:.0f} ms', f'{seconds / base - 1:+.1%}')
    show.table(table)
    others = took['the same, recomputed'][1:]
    steady = max(others) < 1.2 * min(others)
    show.claims.test('C44', quiet.verdict(is_cheap(ours, base)) if steady else None,
                     f'a step takes {ours / base - 1:+.1%} against the same recompute on the device, and '
                     f'{ours / plain - 1:+.0%} against no recompute'
                     + ('' if steady else '; equal steps differ by a fifth and more: the machine is too busy')
                     + quiet.note,
                     because='A step waits for its first load and its last update, however fast the rest is.')


def slices_against_broadcast(show: Show) -> None:
    """On two ranks, each with a disk of its own."""
    quiet = Quiet()
    quiet.look()
    times, alike = zip(*launch(read_in_both_ways, 2, time_limit=120))
    quiet.look()
    took = {reading: max(each[reading] for each in times) for reading in times[0]}
    ratio = took['broadcast'] / took['slices']
    show.say(f'\nTwo ranks, each with a (simulated) disk of its own, train a model of 8 layers. If each reads its half '
             f'of every layer and they gather, the disks are waited for {1e3 * took["slices"]:.0f} ms a step; if one '
             f'reads all and broadcasts, {1e3 * took["broadcast"]:.0f} ms. The weights are '
             f'{"the same" if all(alike) else "NOT the same"}.')
    show.claims.test('C41', quiet.verdict(beats_broadcast(all(alike), ratio)),
                     f'on 2 ranks slices are loaded {ratio:.1f} times as fast as a broadcast from one{quiet.note}',
                     because='At most as many times as there are ranks, and gathering takes time, too. Disks are '
                             'simulated.')


def tiles(show: Show) -> dict[str, float]:
    """A layer larger than the device, in 1, 2, 4, ... tiles."""
    linear, x, y = nn.Linear(256, 4096), torch.randn(8, 256), torch.randn(8, 4096)
    limit = linear.weight.nbytes   # the layer with its gradient does not fit
    plain = copy.deepcopy(linear)
    F.mse_loss(plain(x), y).backward()
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    table = headed(f'A layer of {linear.weight.nbytes / 1e6:.1f} MB; the device has {limit / 1e6:.1f} MB',
                   'tiles', 'peak on a large device', 'on the small one')
    peaks, fitting, alike = {}, [], True
    for count in (1, 2, 4, 8, 16):
        peaks[count], _ = tiled_step(linear, count, x, y, Device('cpu'))
        try:
            _, weight = tiled_step(linear, count, x, y, Device('cpu', memory_limit=limit))
            fitting.append(count)
            alike &= torch.allclose(weight, plain.weight, atol=1e-6)
        except torch.OutOfMemoryError:
            pass
        table.add_row(str(count), f'{peaks[count] / 1e6:.2f} MB', 'trains' if count in fitting else 'out of memory')
    show.table(table)
    show.claims.test('C43', trains_in_tiles(fitting, alike),
                     f'as a whole the layer is out of memory on a device of {limit / 1e6:.1f} MB; in {fitting[0]} '
                     f'tiles or more it trains, as on a large one; 16 tiles need {peaks[1] / peaks[16]:.0f} times '
                     f'less' if fitting else 'it never fitted',
                     because='Inputs and outputs of the layer are not tiled: they stay whole.')
    return {f'{count} tile{"s" * (count > 1)}': peak / 1e6 for count, peak in peaks.items()}


def bandwidths(show: Show) -> None:
    """The lecture's table (of the paper), computed from the figures of one node."""
    table = headed('Published: nodes of 16 GPUs, memory (TB) and bandwidth of a GPU (GB/s)', 'nodes', 'GPUs',
                   'GPU', 'CPU', 'NVMe', 'GPU to GPU', 'from CPU', 'from NVMe', 'NVMe, all GPUs')
    for gpus in (1, 16, 64, 256, 1024):
        row = figure_2b(gpus)
        between = '' if row.gpu_to_gpu is None else '{:.0f}-{:.0f}'.format(*row.gpu_to_gpu)
        table.add_row(f'{row.nodes}', f'{gpus}', f'{row.gpu_memory:.3g}', f'{row.cpu_memory:g}', f'{row.nvme:g}',
                      between, f'{row.cpu:.1f}', f'{row.nvme_speed:.1f}', f'{gpus * row.nvme_speed:.0f}')
    show.table(table)


def picture(waiting: dict[str, float], peaks: dict[str, float]) -> Figure:
    """What bandwidth the formulas ask for; what was measured here."""
    figure = plot.Picture(figsize=(9, 5.2), layout='constrained')
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    speeds = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    needs = {'parameters, 1 sequence': ait_of_parameters(1),
             'optimizer states, 1 sequence': ait_of_optimizer_states(1),
             'activations, width 2,048': ait_of_activations(2048)}
    plot.lines({name: (speeds, [100 * efficiency(ait, speed * GB) for speed in speeds])
                for name, ait in needs.items()}, figure.add_subplot(grid[0, :]), log='x', x='bandwidth (GB/s)',
               y='efficiency (%)', title='What a bandwidth allows without overlap (formulas; 70 TFLOPS, length 1,024)')
    figure.axes[0].set_ylim(0, 105)
    plot.bars(waiting, figure.add_subplot(grid[1, 0]), write='{:.0f} %', title='Measured: waiting, of a forward')
    plot.bars(peaks, figure.add_subplot(grid[1, 1]), write='{:.2f} MB', title='Counted: peak of a layer in tiles')
    return figure
