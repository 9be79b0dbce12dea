"""A U-Net for larger and larger images: its skips go through all devices, straight, or stay in place

One device, or three, each with a limit of memory, and links that take their time. The sizes are small because
the devices are cores; the lecture's own figures, of eight GPUs, are in lesson 4.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import nn

from fewgpu import plot
from fewgpu.balance import cut
from fewgpu.balance.profile import weigh
from fewgpu.device import Device, one_thread
from fewgpu.link import Link
from fewgpu.models import unet
from fewgpu.pipeline import Pipeline
from fewgpu.workshop.demos import Show

SIDES = (16, 32, 64, 128, 192, 224, 256)   # pixels
LIMIT, BANDWIDTH, LATENCY, PACE = 17e6, 40e6, 0.5e-3, 0.6   # bytes, bytes/s, s, share of a core
SMALL = (16, 32, 64, 128, 256, 512)     # pixels of images on one core, without a limit
DEVICES, IMAGES, ROUNDS = 3, 6, 3
DEPTH, WIDTH = 3, 8
LEVELS = [4, 4, 5, 5, 4, 5]   # layers: level 0, level 1, the rest; and back
ONE, NAIVE, STRAIGHT, AWARE, PIPELINE = 'one device', 'naive', 'straight', 'aware', 'pipeline'

#: Seconds a sample on V100s of 16 GB as the lecture published them; None: out of memory.
PUBLISHED = {64: (.07481, .19, .19), 128: (.128, .24, .236), 256: (.346, .5424, .49), 512: (1.3, 1.44, 1.48),
             640: (None, 1.9, 1.92), 768: (None, 2.76, 2.81), 1024: (None, None, 5.96)}
V100 = {64: .0186, 128: .0188, 256: .0232, 512: .0548, 1024: .1899, 2048: .7449}   # another network, one GPU


class Counted(Link):
    """A link that counts what it carries."""

    carried = 0   # bytes

    def arrival(self, size: int, sent: float, device: int) -> float:
        self.carried += size
        return super().arrival(size, sent, device)


@dataclass
class Found:
    """Of a step: seconds and bytes over links an image, and the bytes of the fullest device."""

    seconds: float
    moved: float
    peak: int


def demo(show: Show) -> Figure:
    show.say(f'A U-Net (depth {DEPTH}, {WIDTH} channels at the top) trains on one image at a time, on '
             f'one device or on {DEVICES}, of {LIMIT / 1e6:.0f} MB each. Links carry '
             f'{BANDWIDTH / 1e6:.0f} MB/s; a device has {PACE:.0%} of a core, so that {DEVICES} do not '
             'outnumber two cores. Naive, straight: the layers in order, cut so that the devices hold alike; '
             'skips pass through every device, or go straight to where they are used. Aware: a '
             'device holds the same level of encoder and decoder, '
             f'and skips stay on it. Pipeline: as straight, with {IMAGES} images at once, one a micro-batch, '
             '1F1B and recompute.')
    found = measured()
    show.table(_table(found))
    both = max(side for side in SIDES if all(found[name].get(side) for name in (NAIVE, STRAIGHT, AWARE)))
    _say_what_it_shows(show, found, both)
    _test_moves(show, found, both)
    _test_growth(show)
    return _picture(found, both)


def measured() -> dict[str, dict[int, Found | None]]:
    """Of each way, by size; None where memory ran out, after which larger sizes are not tried."""
    found: dict[str, dict[int, Found | None]] = {name: {} for name in WAYS}
    for side in SIDES:
        torch.manual_seed(0)
        model = unet(depth=DEPTH, width=WIDTH)
        image = torch.rand(1, 1, side, side)
        held = [cost.saved_bytes + 2 * cost.parameter_bytes for cost in weigh(model, image)]
        run = {name: _Run(make(held), copy.deepcopy(model), side, images)
               for name, (images, make) in WAYS.items() if None not in found[name].values()}
        for _ in range(1 + ROUNDS):   # in turn: a busy moment of the machine shall not fall on one alone
            for one in run.values():
                one.step()
        for name, one in run.items():
            found[name][side] = one.found()
    return found


def _in_order(devices: int, **options: Any) -> Callable[[list[int]], dict]:
    """The arguments of a pipeline whose devices hold about as many bytes each."""
    return lambda held: {'balance': cut(held, devices), 'schedule': 'gpipe', **options}


WAYS: dict[str, tuple[int, Callable[[list[int]], dict]]] = {   # images a step, and the pipeline
    ONE: (1, _in_order(1)),
    NAIVE: (1, _in_order(DEVICES, skips='through')),
    STRAIGHT: (1, _in_order(DEVICES)),
    AWARE: (1, lambda held: {'balance': LEVELS, 'schedule': 'v-shape'}),
    PIPELINE: (IMAGES, _in_order(DEVICES, schedule='1f1b', chunks=IMAGES, checkpoint='always')),
}


class _Run:
    """Steps of one way, with images of one size."""

    def __init__(self, options: dict, model: nn.Sequential, side: int, images: int) -> None:
        count = len(options['balance']) // (1 + (options['schedule'] == 'v-shape'))
        self._devices = [Device(index=k, memory_limit=int(LIMIT), link=Counted(LATENCY, BANDWIDTH),
                                pace=PACE) for k in range(count)]
        self._pipeline = Pipeline(model, devices=self._devices, loss_fn=nn.functional.cross_entropy,
                                  **options)
        self._batch = torch.rand(images, 1, side, side), torch.randint(2, (images, side, side))
        self._images, self._times, self._is_full = images, [], False

    def step(self) -> None:
        """One step, unless memory has run out."""
        for device in self._devices:
            device.ledger.reset_peak()
            device.link.carried = 0
        try:
            begun = time.perf_counter()
            if not self._is_full:
                self._pipeline.step(*self._batch)
            self._times.append(time.perf_counter() - begun)
        except torch.OutOfMemoryError:
            self._is_full = True

    def found(self) -> Found | None:
        """The median of all steps but the first, which warms up; None if memory has run out."""
        if self._is_full:
            return None
        return Found(median(self._times[1:]) / self._images,
                     sum(device.link.carried for device in self._devices) / self._images,
                     max(device.ledger.peak for device in self._devices))


def _table(found: dict[str, dict[int, Found | None]]) -> Table:
    table = Table(title='Milliseconds a sample, measured here (in brackets: MB over links a sample)',
                  caption='full: out of memory; larger ones (-) were not tried.', title_justify='left',
                  caption_justify='left')
    table.add_column('pixels', justify='right')
    for name in WAYS:
        table.add_column(name, justify='right')
    for side in SIDES:
        cells = []
        for name in WAYS:
            one = found[name].get(side)
            over = f' ({one.moved / 1e6:.2f})' if one and one.moved else ''
            cells.append(f'{1e3 * one.seconds:.0f}{over}' if one else
                         'full' if side in found[name] else '-')
        table.add_row(str(side), *cells)
    return table


def _say_what_it_shows(show: Show, found: dict[str, dict[int, Found | None]], both: int) -> None:
    largest = {name: max(side for side, one in by_side.items() if one) for name, by_side in found.items()}
    peaks = ', '.join(f'{name} {found[name][both].peak / 1e6:.1f} MB' for name in (NAIVE, STRAIGHT, AWARE))
    show.say('The largest images: ' + ', '.join(f'{name} {side}' for name, side in largest.items())
             + f' pixels. At {both} pixels the fullest device holds: {peaks}. (Half of all activations of a '
               'U-Net belong to its top level, so a device that keeps it whole is the fullest: less moves, '
               'and it is harder to share the memory out. The other cuts were made to share it out evenly.)')
    published = zip((ONE, NAIVE, AWARE), PUBLISHED[256])
    show.say('Published, of a larger U-Net on V100s of 16 GB, one or eight: out of memory from 640 pixels on '
             'one, from 1024 naively, from 2048 aware, which there fits the largest images; at 256 pixels '
             + ', '.join(f'{seconds:g} s {name}' for name, seconds in published) + '.')


def _test_moves(show: Show, found: dict[str, dict[int, Found | None]], side: int) -> None:
    naive, straight, aware = (found[name][side] for name in (NAIVE, STRAIGHT, AWARE))
    published = ', '.join(f'{one / before - 1:+.0%}' for _, before, one in PUBLISHED.values() if before)
    show.claims.test(
        'C09', moves_less({NAIVE: naive.moved, STRAIGHT: straight.moved, AWARE: aware.moved}),
        f'a step with an image of {side} pixels moves {naive.moved / 1e6:.1f} MB naively, '
        f'{straight.moved / 1e6:.1f} MB straight and {aware.moved / 1e6:.1f} MB aware, in '
        f'{naive.seconds:.2f}, {straight.seconds:.2f} and {aware.seconds:.2f} s',
        because=f'how much time that saves depends on the links: published, aware takes {published} against '
                'naive')


def moves_less(moved: dict[str, float]) -> bool:
    """C09, by the bytes over links in a step, by way."""
    return moved[AWARE] < moved[STRAIGHT] < moved[NAIVE]


def _test_growth(show: Show) -> None:
    seconds = _plain_seconds()
    here, published = _growth({side: min(found) for side, found in seconds.items()}), _growth(V100)
    steady = all(median(found) < 1.3 * min(found) for found in seconds.values())
    show.claims.test(
        'C10', is_flat_and_then_grows(*here) if steady else None,
        'four times the area takes, for the smallest and for the largest images, '
        + ', '.join(f'{first:.2f} and {last:.2f} times as long ({where})' for where, (first, last) in (
            (f'{SMALL[0]} and {SMALL[-1]} pixels, here, plainly on a core', here), ('published, a V100', published)))
        + '; flat is less than 1.5 times, growth with the area more than 3 times'
        + ('' if steady else '. Equal steps differ by a third and more: this machine is too busy to tell'),
        because='A core has no thousand units to fill: what is flat here, if anything, is the time that it takes to '
                'start operations.')


def _plain_seconds() -> dict[int, list[float]]:
    """Of four steps without pipeline, limit or pace, on one core, by size; sizes in turn."""
    torch.manual_seed(0)
    model, seconds = unet(depth=DEPTH, width=WIDTH), {side: [] for side in SMALL}
    with one_thread():
        for _ in range(5):
            for side in SMALL:
                image = torch.rand(1, 1, side, side)
                begun = time.perf_counter()
                model(image).sum().backward()
                seconds[side].append(time.perf_counter() - begun)
    return {side: found[1:] for side, found in seconds.items()}   # the first one warms up


def is_flat_and_then_grows(first: float, last: float) -> bool:
    """C10, by what four times the area costs, as a multiple, of the smallest and of the largest images."""
    return first < 1.5 and last > 3


def _growth(seconds: dict[int, float]) -> tuple[float, float]:
    sides = sorted(seconds)
    return tuple(seconds[2 * side] / seconds[side] for side in (sides[0], sides[-2]))


def _picture(found: dict[str, dict[int, Found | None]], side: int) -> Figure:
    figure = plot.Picture(figsize=(10.5, 4.2), layout='constrained')
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    series = {}
    for name, by_side in found.items():
        full = [side for side, one in by_side.items() if one is None]
        series[name + (f' (full at {full[0]})' if full else '')] = (
            SIDES, [by_side.get(side) and by_side[side].seconds for side in SIDES])
    plot.lines(series, left, log='xy', x='side of the image (pixels)', y='s a sample',
               title='A U-Net until memory is full, measured')
    left.set_xticks(marks := [side for side in SIDES if side & (side - 1) == 0], marks)
    moved = {name: found[name][side].moved / 1e6 for name in (NAIVE, STRAIGHT, AWARE)}
    plot.bars(moved, right, write='{:.1f} MB', title=f'Over links in a step, {side} pixels')
    return figure
