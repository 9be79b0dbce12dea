"""Models larger than the device train shard by shard, many of them at once"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from fewgpu import Pipeline, plot
from fewgpu.device import Device, get_devices, one_thread
from fewgpu.link import bytes_in
from fewgpu.spill.lrtf import Chain, Shared, plan
from fewgpu.models import gpt, next_token_loss
from fewgpu.spill import shards_that_fit
from fewgpu.plot.looks import label_rows, size
from fewgpu.schedule import gpipe, with_recompute
from fewgpu.spill.sharp import Job, Trained, sharp
from fewgpu.simulate import Costs, simulate
from fewgpu.spill import Spilled
from fewgpu.spill.units import Visit
from fewgpu.workshop.demos import Show, headed

ROUNDS = 3           # of everything that is timed, in turns, after one to warm up
PACE = 0.2           # of a device: a fifth of a core, so that all devices and the host find their time on two
STEPS = 1            # mini-batches of each model that trains
MODELS, DEVICES = 6, 4
VOCABULARY = 64


def demo(show: Show) -> Figure:
    larger_than_the_device(show)
    buffers = double_buffering(show)
    trained = many_models(show)
    planned(show)
    return picture(buffers, trained)


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
    show.say(f'A GPT of {len(plain)} layers has {size(weights)} of weights, ten times the '
             f'{size(device.memory_limit)} of its device. A pilot run cut it into {len(balance)} shards. Its peak on '
             f'the device, weights, gradients and activations, was {size(device.ledger.peak)}.')
    twice = all(loads.count(s) == 2 for s in range(len(balance) - 1)) and loads.count(len(balance) - 1) == 1
    show.claims.test('C36', equal and twice and device.ledger.peak <= device.memory_limit,
                     f'{size(weights)} of weights trained within {size(device.memory_limit)}; all gradients equal '
                     f'those of the plain model to the bit: {"yes" if equal else "no"}; {len(loads)} loads of '
                     f'{len(balance)} shards in a step.',
                     because='The last shard is loaded once: its forward, loss and backward are one unit.')


def double_buffering(show: Show) -> dict[str, Spilled]:
    """C37: the same step with one buffer and with two, in turns."""
    x, y = tokens(4, 32)
    unit = spilled(0, balance(5), [Device(pace=PACE)])
    seconds = seconds_of(lambda: unit.step(x, y), 2)[-1]
    shard = max(part.bytes for part in unit.shards)
    bandwidth = shard / (0.4 * seconds / len(unit.units))   # a load takes so much of a unit's time
    models = {name: spilled(0, balance(5), get_devices(1, kind='cpu', pace=PACE, bandwidth=bandwidth), prefetch=ahead)
              for name, ahead in (('one buffer', False), ('two buffers', True))}
    seconds, moving, shown = ({name: [] for name in models} for _ in range(3))
    for _ in range(2 + ROUNDS):
        for name, model in models.items():
            seconds[name] += seconds_of(lambda model=model: model.step(x, y), 1)
            computing, away = (sum(v.end - v.start for v in model.visits if (v.what == 'compute') == computes)
                               for computes in (True, False))
            moving[name].append(away)
            shown[name].append((seconds[name][-1] - computing) / away)
    one, two = (median(seconds[name][1:]) for name in models)   # the first round warms up
    hidden = 1 - median(shown['two buffers'][1:])
    table = headed(f'One device, {len(unit.shards)} shards, medians of {ROUNDS + 1} steps', '', 'seconds a step',
                   'shards and gradients under way', 'of which the device waits')
    for name in models:
        table.add_row(name, f'{median(seconds[name][1:]):.2f}', f'{median(moving[name][1:]):.2f} s',
                      f'{median(shown[name][1:]):.0%}')
    show.table(table)
    show.claims.test('C37', hidden >= 0.7, f'{hidden:.0%} of the transfers (and of the updates on the host) are hidden '
                     f'by a second buffer; a step takes {two:.2f} s instead of {one:.2f}, {one / two:.2f} times as '
                     f'fast (published: 1.5 to 2).',
                     because='The first load of a step and the last gradients have no unit beside them; how much there '
                             'is to hide depends on the link, which here takes two fifths of a unit for a shard.')
    return models


def many_models(show: Show) -> Trained:
    """C35: many models on some devices: one by one on one, cut over all, and shared."""
    ways: dict[str, Callable[[], Callable[[], object]]] = {   # each makes its models, and what trains them
        'one after the other, on one device': one_by_one, 'model parallelism': lambda: pipelined(1),
        'GPipe, 4 micro-batches': lambda: pipelined(4), 'shared': shared}
    times, results = {name: [] for name in ways}, {}
    for _ in range(1 + ROUNDS):
        for name, way in ways.items():
            train = way()
            times[name] += seconds_of(lambda name=name, train=train: results.update({name: train()}), 1)
    alone, naive, _, spread = seconds = [median(each[1:]) for each in times.values()]
    table = headed(f'{MODELS} models on {DEVICES} devices, medians of {ROUNDS} rounds', '', 'seconds', 'of one device')
    for name, value in zip(ways, seconds):
        table.add_row(name, f'{value:.2f}', f'{alone / value:.2f} x')
    show.table(table)
    trained, waiting = results['shared'], results['model parallelism']
    busy = trained.shared.utilisation
    show.claims.test('C35', busy >= 0.75 and busy > 1 - waiting and naive > spread,
                     f'shared by {MODELS} models {DEVICES} devices compute {busy:.0%} of the time, and in model '
                     f'parallelism {1 - waiting:.0%}; all is done {naive / spread:.2f} times as fast.',
                     because='A spilled model computes every forward twice but that of the last shard, which model '
                             'parallelism does not; and at the end some devices find no model that is free.')
    return trained


def linked(count: int) -> list[Device]:
    return get_devices(count, kind='cpu', pace=PACE, bandwidth=2e8)


def one_by_one() -> Callable[[], object]:
    models = [spilled(seed, balance(3), linked(1)) for seed in range(MODELS)]
    return lambda: [model.step(x, y) for model in models for x, y in batches()]


def pipelined(chunks: int) -> Callable[[], object]:
    """What trains returns the share of time in which the devices idle."""
    pipes = [Pipeline(network(seed), balance(DEVICES), schedule='gpipe', chunks=chunks, devices=linked(DEVICES),
                      loss_fn=next_token_loss, optimizer=torch.optim.Adam, checkpoint='never')
             for seed in range(MODELS)]
    def train() -> float:
        for pipe in pipes:
            for x, y in batches():
                pipe.step(x, y)
        return pipes[-1].trace.bubble
    return train


def shared() -> Callable[[], object]:
    jobs = [Job(spilled(seed, balance(3), linked(1)), batches()) for seed in range(MODELS)]
    return lambda: sharp(jobs, linked(DEVICES))


def planned(show: Show) -> None:
    """C38: more devices than this machine has cores, in virtual time."""
    table = headed('16 models, 5 mini-batches each, in units of one forward of a shard', 'devices',
                   'model parallelism', 'GPipe, 4', 'GPipe, 32 micro-batches', 'shared', 'busy')
    against: dict[int, tuple[float, float, float]] = {}
    for count in (4, 8):
        naive, few, many = (80 * pipeline(count, chunks) for chunks in (1, 4, 32))
        units = [1.0] * (count - 1) + [3.0] + [3.0] * (count - 1)   # a backward takes two, and a recompute one
        ours = plan([Chain(units, 5, [0.5] * len(units))] * 16, count)
        against[count] = naive / ours.makespan, 1 - ours.makespan / few, 1 - ours.makespan / many
        table.add_row(str(count), *(f'{value:.0f}' for value in (naive, few, many, ours.makespan)),
                      f'{ours.utilisation:.0%}')
    show.table(table)
    times, few, many = against[8]
    show.claims.test('C38', times >= 4 and max(few, many) >= 0.9, f'on 8 devices {times:.1f} times as fast as model '
                     f'parallelism, and {few:.0%} less time than GPipe with 4 micro-batches, {many:.0%} with 32.',
                     by='the simulator',
                     because='The four times hold. GPipe fills its devices with enough micro-batches, which cost '
                             'nothing here; 90 % less takes a GPipe whose bubble is nine tenths of its time.')


def pipeline(stages: int, chunks: int) -> float:
    """The makespan of one mini-batch in the plain pipeline, with what recompute it takes to fit."""
    schedule = gpipe(stages, chunks)
    if chunks > 1:
        schedule = with_recompute(schedule, 'except_last')
    return simulate(schedule, Costs(F=1 / chunks, B=2 / chunks)).makespan


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return gpt(6, 128, 4, vocabulary=VOCABULARY)


def balance(shards: int) -> list[int]:
    """Of the 9 layers of `network`."""
    return [9 // shards + (s < 9 % shards) for s in range(shards)]


def spilled(seed: int, cuts: list[int], devices: Sequence[Device], *, prefetch: bool = True) -> Spilled:
    return Spilled(network(seed), cuts, device=devices[0], loss_fn=next_token_loss, optimizer=torch.optim.Adam,
                   prefetch=prefetch)


def tokens(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(VOCABULARY, (rows, length + 1), generator=torch.Generator().manual_seed(1))
    return text[:, :-1], text[:, 1:]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [tokens(4, 32) for _ in range(STEPS)]


def seconds_of(call: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def picture(models: dict[str, Spilled], trained: Trained) -> Figure:
    figure = plot.Picture(figsize=(9.5, 9.0), layout='constrained')
    first, second, third = figure.subplots(3, 1, height_ratios=(3, 3, 4))
    longest = max(visit.end for model in models.values() for visit in since_start(model.visits))
    for ax, (name, model) in zip((first, second), models.items()):
        lanes(ax, since_start(model.visits), f'One model, {name}: what is done with which shard', longest)
    plot.tasks(together(trained.shared), third, worker='device',
               title=f'{len(trained.losses)} models share {DEVICES} devices: which shard of which')
    return figure


def since_start(visits: Sequence[Visit]) -> list[Visit]:
    first = min(visit.start for visit in visits)
    return sorted((visit._replace(start=visit.start - first, end=visit.end - first) for visit in visits),
                  key=lambda visit: visit.start)


def lanes(ax: Axes, visits: Sequence[Visit], title: str, span: float) -> None:
    """Rows for what comes, what is computed, and what leaves."""
    kinds = {'F': 'forward', 'L': 'backward', 'B': 'backward'}
    rows = {'load': 0, 'compute': 1, 'store': 2}
    steps = {'load': 'shard comes', 'store': 'gradients leave, update'}
    plot.tasks([plot.Task(rows[visit.what], steps.get(visit.what, kinds[visit.unit.kind]), visit.unit.shard,
                          visit.start, visit.end) for visit in visits], ax, title=title, span=span)
    label_rows(ax, ['link in', 'device', 'link out'])


def together(shared: Shared) -> list[plot.Task]:
    return [plot.Task(one.device, f'model {one.model}', shared.chains[one.model].shard(one.number), one.start, one.end)
            for one in sorted(shared.done, key=lambda one: (one.model, one.start))]
