"""Models larger than the device train shard by shard, many of them at once"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from torch import nn

from fewgpu import Pipeline, plot
from fewgpu.device import Device, get_devices, one_thread
from fewgpu.link import bytes_in
from fewgpu.lrtf import Chain, Shared, plan
from fewgpu.models import gpt, next_token_loss
from fewgpu.pilot import shards_that_fit
from fewgpu.plot.looks import label_rows, size
from fewgpu.schedule import gpipe, with_recompute
from fewgpu.sharp import Job, Trained, sharp
from fewgpu.simulate import Costs, simulate
from fewgpu.spill import Spilled
from fewgpu.shard_units import Visit
from fewgpu.workshop.demos import Show

ROUNDS = 3           # of everything that is timed, in turns
PACE = 0.4           # of a device: that of a core, so that two devices and the host find their time on two cores
STEPS = 2            # mini-batches of each model that trains
MODELS = 3           # that share two devices
VOCABULARY = 64


def demo(show: Show) -> Figure:
    larger_than_the_device(show)
    buffers = double_buffering(show)
    trained = many_models(show)
    planned(show)
    return picture(buffers, trained)


# one model on one device

def larger_than_the_device(show: Show) -> None:
    """C36: a model ten times its device, against the plain one."""
    torch.manual_seed(0)
    model, plain = gpt(64, 32, 2, vocabulary=VOCABULARY), gpt(64, 32, 2, vocabulary=VOCABULARY)
    model.load_state_dict(plain.state_dict())
    weights, (x, y) = bytes_in([*plain.parameters()]), tokens(2, 16)
    device = Device(memory_limit=weights // 10)
    balance = shards_that_fit(model, x, y, next_token_loss, device, inputs_on_host=True)
    spilled = Spilled(model, balance, device=device, loss_fn=next_token_loss, inputs_on_host=True)
    spilled.step(x, y)
    with one_thread():
        next_token_loss(plain(x), y).backward()
    equal = all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), spilled.parameters()))
    loads = [visit.unit.shard for visit in spilled.visits if visit.what == 'load']
    show.say(f'A GPT of {len(plain)} layers has {size(weights)} of weights, ten times the {size(device.memory_limit)} '
             f'of its device. A pilot run cut it into {len(balance)} shards. Its peak on the device, weights, '
             f'gradients and activations, was {size(device.ledger.peak)}.')
    twice = all(loads.count(s) == 2 for s in range(len(balance) - 1)) and loads.count(len(balance) - 1) == 1
    show.claims.test('C36', equal and twice and device.ledger.peak <= device.memory_limit,
                     f'{size(weights)} of weights trained within {size(device.memory_limit)}; all gradients equal those '
                     f'of the plain model{" to the bit" if equal else ": no"}; {len(loads)} loads of '
                     f'{len(balance)} shards in a step.',
                     because='The last shard is loaded once: its forward, loss and backward are one unit.')


def double_buffering(show: Show) -> dict[str, Spilled]:
    """C37: the same step with one buffer and with two, in turns."""
    x, y = tokens(8, 32)
    unit = spilled(0, balance(6), [Device(pace=PACE)])
    steps = seconds_of(lambda: unit.step(x, y), 2)[-1]
    shard = max(part.bytes for part in unit.shards)
    bandwidth = shard / (0.5 * steps / len(unit.units))   # a load takes half of a unit's time
    models = {name: spilled(0, balance(6), get_devices(1, kind='cpu', pace=PACE, bandwidth=bandwidth), prefetch=ahead)
              for name, ahead in (('one buffer', False), ('two buffers', True))}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    moving: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(1 + ROUNDS):
        for name, model in models.items():
            seconds[name] += seconds_of(lambda model=model: model.step(x, y), 1)
            moving[name].append(sum(v.end - v.start for v in model.visits if v.what != 'compute'))
    one, two = (median(seconds[name][1:]) for name in models)   # the first round warms up
    away = median(moving['one buffer'][1:])
    hidden = (one - two) / away
    table = Table(title=f'One device, {len(unit.shards)} shards, medians of {ROUNDS} steps', title_justify='left')
    for heading in ('', 'seconds a step', 'shards and gradients under way'):
        table.add_column(heading, justify='right' if heading else 'left')
    for name in models:
        table.add_row(name, f'{median(seconds[name][1:]):.2f}', f'{median(moving[name][1:]):.2f} s')
    show.table(table)
    show.claims.test('C37', hidden >= 0.7, f'{one:.2f} s a step with one buffer, {two:.2f} s with two: {hidden:.0%} of '
                     f'the {away:.2f} s of transfers (and of the updates on the host) are hidden, {one / two:.2f} times '
                     f'as fast (published: 1.5 to 2).',
                     because='The first load of a step and the last gradients have no unit beside them; how much there '
                             'is to hide depends on the link, which here needs half of a unit for a shard.')
    return models


# many models

def many_models(show: Show) -> Trained:
    """C35: three models on two devices: model by model, cut over both, and shared."""
    data = [tokens(8, 32) for _ in range(STEPS)]
    bandwidth = 1e8

    def devices(count: int = 2) -> list[Device]:
        return get_devices(count, kind='cpu', pace=PACE, bandwidth=bandwidth)

    def one_by_one() -> None:
        for seed, device in ((seed, devices(1)) for seed in range(MODELS)):
            model = spilled(seed, balance(4), device)
            for x, y in data:
                model.step(x, y)

    def pipelined(chunks: int) -> None:
        for seed in range(MODELS):
            pipeline = Pipeline(network(seed), balance(2), schedule='gpipe', chunks=chunks, devices=devices(),
                                loss_fn=next_token_loss, optimizer=adam, checkpoint='never')
            for x, y in data:
                pipeline.step(x, y)

    latest: list[Trained] = []

    def shared() -> None:
        latest[:] = [sharp([Job(spilled(seed, balance(4), devices(1)), data) for seed in range(MODELS)], devices())]

    ways: dict[str, Callable[[], None]] = {
        'one after the other, on one device': one_by_one, 'model parallelism on two': lambda: pipelined(1),
        'GPipe on two, 4 micro-batches': lambda: pipelined(4), 'shared, on two': shared}
    seconds = {name: [] for name in ways}
    for _ in range(1 + ROUNDS):
        for name, way in ways.items():
            seconds[name] += seconds_of(way, 1)
    found = {name: median(times[1:]) for name, times in seconds.items()}
    table = Table(title=f'{MODELS} models, {STEPS} steps each, medians of {ROUNDS} rounds', title_justify='left')
    for heading in ('', 'seconds', 'of one device'):
        table.add_column(heading, justify='right' if heading else 'left')
    single = found['one after the other, on one device']
    for name, value in found.items():
        table.add_row(name, f'{value:.2f}', f'{single / value:.2f} x')
    show.table(table)
    busy = latest[0].shared.utilisation
    naive = found['model parallelism on two']
    gain = naive / found['shared, on two']
    show.claims.test('C35', busy > 0.75 and gain > 1.2,
                     f'with {MODELS} models two devices compute {busy:.0%} of the time, and are {gain:.2f} times as fast '
                     f'as in model parallelism, where one waits for the other.',
                     because='Three models on two devices cannot end together; and a spilled model computes every '
                             'forward twice but the last, which model parallelism does not.')
    return latest[0]


def planned(show: Show) -> None:
    """C38: more devices than this machine has cores, in virtual time."""
    table = Table(title='16 models, 5 mini-batches each, in units of one forward of a shard', title_justify='left')
    for heading in ('devices', 'model parallelism', 'GPipe, 4', 'GPipe, 32 micro-batches', 'shared', 'busy'):
        table.add_column(heading, justify='right')
    against: dict[int, tuple[float, float, float]] = {}
    for count in (4, 8):
        naive, few, many = (80 * pipeline(count, chunks) for chunks in (1, 4, 32))
        units = [1.0] * (count - 1) + [3.0] + [3.0] * (count - 1)   # a backward takes two, and a recompute one
        shared = plan([Chain(units, 5, [0.5] * len(units))] * 16, count)
        against[count] = naive / shared.makespan, 1 - shared.makespan / few, 1 - shared.makespan / many
        table.add_row(str(count), *(f'{value:.0f}' for value in (naive, few, many, shared.makespan)),
                      f'{shared.utilisation:.0%}')
    show.table(table)
    times, few, many = against[8]
    show.claims.test('C38', times >= 4 and max(few, many) >= 0.9, f'on 8 devices {times:.1f} times as fast as model '
                     f'parallelism, and {few:.0%} less time than GPipe with 4 micro-batches, {many:.0%} with 32.',
                     by='the simulator',
                     because='The four times hold. GPipe fills its devices with enough micro-batches, which cost nothing '
                             'here; 90 % less takes a GPipe whose bubble is nine tenths of its time.')


def pipeline(stages: int, chunks: int) -> float:
    """The makespan of one mini-batch in the plain pipeline, with what recompute it takes to fit."""
    schedule = gpipe(stages, chunks)
    if chunks > 1:
        schedule = with_recompute(schedule, 'except_last')
    return simulate(schedule, Costs(F=1 / chunks, B=2 / chunks)).makespan


# parts

def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return gpt(10, 64, 4, vocabulary=VOCABULARY)


def balance(shards: int) -> list[int]:
    """Of the 13 layers of `network`."""
    return [13 // shards + (s < 13 % shards) for s in range(shards)]


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def spilled(seed: int, cuts: list[int], devices: Sequence[Device], *, prefetch: bool = True) -> Spilled:
    return Spilled(network(seed), cuts, device=devices[0], loss_fn=next_token_loss, optimizer=adam,
                   prefetch=prefetch)


def tokens(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(VOCABULARY, (rows, length + 1), generator=torch.Generator().manual_seed(1))
    return text[:, :-1], text[:, 1:]


def seconds_of(call: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


# the picture

def picture(models: dict[str, Spilled], trained: Trained) -> Figure:
    figure = plot.Picture(figsize=(9.5, 8.2), layout='constrained')
    first, second, third = figure.subplots(3, 1, height_ratios=(3, 3, 2.2))
    longest = max(visit.end for model in models.values() for visit in since_start(model.visits))
    for ax, (name, model) in zip((first, second), models.items()):
        lanes(ax, since_start(model.visits), f'One model, {name}: what is done with which shard', longest)
    plot.tasks(together(trained.shared), third, worker='device',
               title=f'{len(trained.losses)} models share two devices: which shard of which')
    return figure


def since_start(visits: Sequence[Visit]) -> list[Visit]:
    first = min(visit.start for visit in visits)
    return [visit._replace(start=visit.start - first, end=visit.end - first) for visit in visits]


def lanes(ax: Axes, visits: Sequence[Visit], title: str, span: float) -> None:
    """Rows for what comes, what is computed, and what leaves."""
    kinds = {'F': 'forward', 'L': 'backward', 'B': 'backward'}
    rows = {'load': 0, 'compute': 1, 'store': 2}
    steps = {'load': 'shard comes', 'store': 'gradients leave, update'}
    done = [plot.Task(rows[visit.what], steps.get(visit.what, kinds[visit.unit.kind]), visit.unit.shard, visit.start,
                      visit.end) for visit in sorted(visits, key=lambda visit: visit.start)]
    plot.tasks(done, ax, title=title, span=span)
    label_rows(ax, ['link in', 'device', 'link out'])


def together(shared: Shared) -> list[plot.Task]:
    return [plot.Task(one.device, f'model {one.model}', shared.chains[one.model].shard(one.number), one.start, one.end)
            for one in sorted(shared.done, key=lambda one: (one.model, one.start))]
