"""GEMS: a second replica of the model, laid over the same devices backwards, fills idle time"""

import copy
from collections.abc import Callable
from functools import partial

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import nn

from fewgpu import plot
from fewgpu.device import get_devices
from fewgpu.pipeline import Pipeline
from fewgpu.schedule import Op, Schedule, gems, gpipe, one_f_one_b
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.demos import Show

DEVICES, CHUNKS = 4, 8
WIDTH, ROWS, STEPS = 128, 1024, 3        # of a layer; in a micro-batch; steps of the run
FORWARD, BACKWARD = 1, 2                 # units of time of a stage
COSTS = Costs(F=FORWARD, B=BACKWARD, stash=1)
sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def demo(show: Show) -> Figure:
    show.say(f'A model in {DEVICES} stages on {DEVICES} devices, {CHUNKS} micro-batches before each update. '
             f'GEMS lays a second replica of it over the devices in reverse order: a device runs one '
             f'micro-batch forward and backward, then one of the other replica, whose forward follows the '
             f'backward that has just left. (The mechanism is remembered from the paper, not read again.)')
    gain, behind = _simulate(show)
    _grow(show)
    _train(show)
    show.claims.test(
        'P03', fills_idle_time(gain),
        f'a step is {gain:.2f} times as fast as one micro-batch at a time through one replica, and '
        f'stashes one micro-batch a device; 1F1B is {behind:.2f} times as fast as GEMS', by='the simulator',
        because='GEMS saves memory, not time: it stashes one micro-batch a device, where 1F1B stashes up to one a '
                'stage and GPipe all; it pays with twice the weights and states, and with a bubble that stays however '
                'many micro-batches come.')
    drawn = {name: SCHEDULES[name](DEVICES, CHUNKS).select(lambda op: op.kind != 'U')   # those take no time
             for name in ('GEMS', '1F1B', 'GPipe')}
    return plot.timelines({name: simulate(schedule, COSTS) for name, schedule in drawn.items()}, unit='units')


def fills_idle_time(gain: float) -> bool:
    """P03, by how many times as fast a step is as with one replica, a micro-batch at a time."""
    return gain > 1.05


def one_at_a_time(stages: int, micro_batches: int) -> Schedule:
    """Model parallel: a micro-batch goes forward and backward before the next one comes."""
    return Schedule('one at a time', stages, micro_batches, tuple(
        tuple(Op(kind, stage, i) for i in range(micro_batches) for kind in 'FB') for stage in range(stages)))


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    'GEMS': gems, '1F1B': one_f_one_b, 'GPipe': gpipe, 'one at a time, one replica': one_at_a_time}


def _simulate(show: Show) -> tuple[float, float]:
    """Time, weights and stashes of GEMS and of others; how much faster it is than one micro-batch at a time,
    and 1F1B than it."""
    table = Table('schedule', 'makespan', 'bubble', 'copies of the weights', 'stashes of a device',
                  title=f'Simulated: forward {FORWARD}, backward {BACKWARD} units, free messages',
                  title_justify='left')
    times = {}
    for name, make in SCHEDULES.items():
        timeline = simulate(make(DEVICES, CHUNKS), COSTS)
        held = simulate(make(DEVICES, CHUNKS), Costs(weights=1))
        copies = sum(map(held.peak, range(DEVICES))) / DEVICES
        peaks = [timeline.peak(device) for device in range(DEVICES)]
        times[name] = timeline.makespan
        table.add_row(name, f'{timeline.makespan:g}', f'{timeline.bubble:.1%}', f'{copies:g}',
                      ', '.join(map(str, peaks)))
    show.table(table)
    first, *_, last = times.values()
    return last / first, first / times['1F1B']


def _grow(show: Show) -> None:
    """The bubble of a long step beside the table of the Chimera paper, as it is remembered."""
    table = Table('devices', 'bubble of GEMS', '(D - 1) / (D + 1/2)', 'bubble of 1F1B',
                  title='Simulated: a step of 200 micro-batches', title_justify='left')
    for devices in (2, 4, 8, 16):
        ours, theirs = (simulate(make(devices, 200), COSTS).bubble for make in (gems, one_f_one_b))
        table.add_row(str(devices), f'{ours:.1%}', f'{(devices - 1) / (devices + 0.5):.1%}', f'{theirs:.1%}')
    show.table(table)
    show.say('The third column is an entry of a table in the Chimera paper (arXiv 2107.06925), as it is '
             'remembered. It follows from the picture: a backward of all D devices and one forward, 2D + 1 '
             'units, for a micro-batch that keeps each device busy for 3.')


def _train(show: Show) -> None:
    """A few real steps on virtual devices, against plain SGD, and the bytes that lived on the devices."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2 * DEVICES)))
    data = [torch.randn(2, CHUNKS * ROWS, WIDTH) for _ in range(STEPS)]
    plain = copy.deepcopy(model)
    expected = _plain_losses(plain, data)
    table = Table('schedule', *(f'device {d}' for d in range(DEVICES)), 'farthest weight from plain SGD',
                  title=f'Measured on {DEVICES} virtual devices: peak MB in the last of {STEPS} steps',
                  title_justify='left')
    for name in ('gems', '1f1b', 'gpipe'):
        pipeline = _pipeline(copy.deepcopy(model), name)
        losses = [pipeline.step(*batch).item() for batch in data]
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0.0)
        away = max((a - b).abs().max().item() for a, b in zip(pipeline.parameters(), plain.parameters()))
        peaks = map(pipeline.trace.peak, range(DEVICES))
        table.add_row(name, *(f'{peak / 1e6:.1f}' for peak in peaks), f'{away:.1e}')
        if name == 'gems':
            alike = _replicas_are_alike(pipeline)
    show.table(table)
    weights = 4 * sum(p.numel() for p in plain.parameters()) / DEVICES / 1e6
    show.say(f'All losses are those of plain SGD but for rounding; the weights of the two replicas are '
             f'{"equal" if alike else "NOT equal"}, bit by bit. A stage has {weights:.2f} MB of weights: '
             f'where activations are larger, as here, a second copy costs less than the stashes it saves.')


def _plain_losses(plain: nn.Module, data: list[torch.Tensor]) -> list[float]:
    optimizer, losses = sgd(plain.parameters()), []
    for x, y in data:
        loss = nn.functional.mse_loss(plain(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _pipeline(model: nn.Sequential, schedule: str) -> Pipeline:
    devices = get_devices(DEVICES, kind='cpu')
    for device in devices:
        device.meter()   # count bytes
    return Pipeline(model, [2] * DEVICES, schedule=schedule, chunks=CHUNKS, devices=devices,
                    loss_fn=nn.functional.mse_loss, optimizer=sgd)


def _replicas_are_alike(pipeline: Pipeline) -> bool:
    """Are the parameters of a stage equal on both of its devices?"""
    def parameters(device: int, stage: int) -> list[torch.Tensor]:
        return pipeline.optimizers[device, stage].param_groups[0]['params']

    return all(torch.equal(first, second) for s in range(DEVICES)
               for first, second in zip(parameters(s, s), parameters(DEVICES - 1 - s, s)))
