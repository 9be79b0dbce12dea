"""Four paced devices: zero bubble against 1F1B, and real timelines against simulated ones.

A device at a quarter of the speed leaves the cores free for the others, so four behave on two
cores as they would on four (see fewgpu.device.Device).
"""

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fewgpu import Pipeline, get_devices
from fewgpu.device import one_thread
from fewgpu.schedule import SCHEDULES, with_updates
from fewgpu.simulate import Costs, simulate
from tests.bench.stats import Summary, paired_ratios

DEVICES, CHUNKS, LATENCY = 4, 8, 1e-3
NAMES = ('1f1b', 'zb-h1', 'zb-h2', 'gpipe')


def run(rounds: int, pace: float, width: int, console: Console) -> dict[str, list[dict]]:
    """Seconds of every schedule's steps, and what the simulator says with the measured costs."""
    torch.manual_seed(0)
    x, y = torch.rand(2, 128 * CHUNKS, width)
    found: dict[str, list[dict]] = {name: [] for name in NAMES}
    with one_thread():
        pipelines = {name: _pipeline(name, pace, width) for name in NAMES}
        for number in range(rounds + 1):
            for name, pipeline in pipelines.items():
                pipeline.step(x, y)
                if number:   # the first one is to warm up
                    found[name].append(_held_against_the_simulator(name, pipeline))
    show(found, pace, console)
    return found


def _pipeline(schedule: str, pace: float, width: int) -> Pipeline:
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4 * DEVICES)]
    return Pipeline(nn.Sequential(*layers), [4] * DEVICES, schedule=schedule, chunks=CHUNKS,
                    devices=get_devices(DEVICES, kind='cpu', pace=pace, latency=LATENCY),
                    loss_fn=nn.functional.mse_loss)


def _held_against_the_simulator(name: str, pipeline: Pipeline) -> dict:
    real = pipeline.trace
    costs = Costs(**{**vars(Costs.measured(real)), 'latency': LATENCY})
    simulated = simulate(with_updates(SCHEDULES[name](DEVICES, CHUNKS)), costs)
    return {'seconds': real.makespan, 'simulated': simulated.makespan, 'bubble': real.bubble}


def show(found: dict[str, list[dict]], pace: float, console: Console) -> None:
    """A row a schedule."""
    table = Table('schedule', 'ms a step', 'bubble', 'time / 1F1B', 'time / simulated',
                  title=f'{DEVICES} devices at pace {pace:g}, {CHUNKS} micro-batches, links of '
                        f'{LATENCY * 1e3:g} ms')
    seconds = {name: [one['seconds'] for one in rounds] for name, rounds in found.items()}
    for name, rounds in found.items():
        over = Summary.of(paired_ratios(seconds[name], seconds['1f1b']))
        against = Summary.of([one['seconds'] / one['simulated'] for one in rounds])
        table.add_row(name, f'{Summary.of(seconds[name]).median * 1e3:.1f}',
                      f'{Summary.of([one["bubble"] for one in rounds]).median:.1%}',
                      f'{over.median:.3f} [{over.low:.3f} to {over.high:.3f}]',
                      f'{against.median:.3f} [{against.low:.3f} to {against.high:.3f}]')
    console.print(table)
