"""Models larger than the device train shard by shard, many of them at once"""

from collections.abc import Callable, Sequence
from statistics import median

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewgpu import plot
from fewgpu.device import Device, get_devices, one_thread
from fewgpu.link import bytes_in
from fewgpu.models import gpt, next_token_loss
from fewgpu.plot.looks import label_rows, size
from fewgpu.spill import Spilled, shards_that_fit
from fewgpu.spill.lrtf import Chain, Shared, plan
from fewgpu.spill.sharp import Trained
from fewgpu.spill.units import Visit
from fewgpu.workshop.demos import Show, headed
from fewgpu.workshop.measured.hydra import (
    DEVICES, MODELS, PACE, VOCABULARY, even_balance, one_by_one, pipelined, seconds_of, shared, spilled, tokens,
    virtual_pipeline)
from fewgpu.workshop.noise import Quiet, both, faster

ROUNDS = 3           # of everything that is timed, in turns, after one to warm up


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
    limited, device = Device(memory_limit=weights // 10), Device()   # what trains is counted, and not limited
    balance = shards_that_fit(model, x, y, next_token_loss, limited, inputs_on_host=True)
    device.meter()
    trainer = Spilled(model, balance, device=device, loss_fn=next_token_loss, inputs_on_host=True)
    trainer.step(x, y)
    with one_thread():
        next_token_loss(plain(x), y).backward()
    equal = all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), trainer.parameters()))
    loads = [visit.unit.shard for visit in trainer.visits if visit.what == 'load']
    show.say(f'First one model on one device. A GPT of {len(plain)} layers has {size(weights)} of weights, ten times '
             f'the {size(limited.memory_limit)} of a small device. A pilot run cut it into {len(balance)} shards for '
             f'that. Then it trained on a device without a limit, which counted what lived on it at once: '
             f'{size(device.ledger.peak)}, weights, gradients and activations.')
    show.claims.test('C36', trains_by_shards(equal, loads, len(balance), device.ledger.peak, limited.memory_limit),
                     f'{size(weights)} of weights trained with at most {size(device.ledger.peak)} at once, where '
                     f'{size(limited.memory_limit)} were allowed; all gradients equal '
                     f'those of the plain model to the bit: {"yes" if equal else "no"}; {len(loads)} loads of '
                     f'{len(balance)} shards in a step.',
                     because='The last shard is loaded once: its forward, loss and backward are one unit.')


def trains_by_shards(equal: bool, loads: Sequence[int], shards: int, peak: int, limit: int) -> bool:
    """C36: gradients are equal, every shard but the last is loaded twice, and the peak is within the limit."""
    return equal and peak <= limit and sorted(loads) == sorted([*range(shards), *range(shards - 1)])


def hides_transfers(hidden: float) -> bool:
    """C37, by the share of the transfers that a second buffer hides."""
    return hidden >= 0.7


def keeps_busy(busy: float, waiting: float, naive: float, spread: float) -> bool | None:
    """C35: many models keep devices busy, which wait in model parallelism, and are done earlier (seconds)."""
    return both(busy >= 0.75, faster(busy, 1 - waiting), faster(naive, spread))   # more seconds: slower


def is_that_much_faster(times: float, less: Sequence[float]) -> bool:
    """C38, by times as fast as model parallelism, and by how much less time than GPipe (shares)."""
    return times >= 4 and max(less) >= 0.9


def double_buffering(show: Show) -> dict[str, Spilled]:
    """C37: the same step with one buffer and with two, in turns."""
    x, y = tokens(4, 32)
    unit, quiet = spilled(0, even_balance(5), [Device(pace=PACE)]), Quiet()
    seconds = seconds_of(lambda: unit.step(x, y), 2)[-1]
    shard = max(part.bytes for part in unit.shards)
    bandwidth = shard / (0.4 * seconds / len(unit.units))   # a load takes so much of a unit's time
    models = {name: spilled(0, even_balance(5), get_devices(1, kind='cpu', pace=PACE, bandwidth=bandwidth),
                            prefetch=ahead) for name, ahead in (('one buffer', False), ('two buffers', True))}
    seconds, moving, idle = ({name: [] for name in models} for _ in range(3))
    for _ in range(2 + ROUNDS):
        quiet.look()
        for name, model in models.items():
            seconds[name] += seconds_of(lambda model=model: model.step(x, y), 1)
            computing, away = (sum(v.end - v.start for v in model.visits if (v.what == 'compute') == computes)
                               for computes in (True, False))
            moving[name].append(away)
            idle[name].append(seconds[name][-1] - computing)
    one, two = (median(seconds[name][1:]) for name in models)   # the first round warms up
    hidden = 1 - median(waits / away for waits, away in zip(idle['two buffers'][1:], moving['two buffers'][1:]))
    show.say(f'\nThen a smaller one in {len(unit.shards)} shards, behind a link that takes two fifths of a unit for a '
             f'shard, with one buffer and with two, in turns: one is filled while the device computes with the other.')
    table = headed(f'One model, one device; medians of {ROUNDS + 1} steps', '', 'seconds\na step',
                   'shards and gradients\nare under way (s)', 'the device does\nnot compute (s)')
    for name in models:
        table.add_row(name, f'{median(seconds[name][1:]):.2f}', f'{median(moving[name][1:]):.3f}',
                      f'{median(idle[name][1:]):.3f}')
    show.table(table)
    show.claims.test('C37', quiet.verdict(hides_transfers(hidden)),
                     f'{hidden:.0%} of the transfers (and of the updates on the host) are hidden '
                     f'by a second buffer; a step takes {two:.2f} s instead of {one:.2f}, {one / two:.2f} times as '
                     f'fast (published: 1.5 to 2){quiet.note}.',
                     because='The first load of a step and the last gradients have no unit beside them; how much '
                             'there is to hide depends on the link: here two fifths of a unit for a shard.')
    return models


def many_models(show: Show) -> Trained:
    """C35: many models on some devices: one by one on one, cut over all, and shared."""
    ways: dict[str, Callable[[], Callable[[], object]]] = {   # each makes its models, and what trains them
        'one after the other, on one device': one_by_one, 'model parallelism': lambda: pipelined(1),
        'GPipe, 4 micro-batches': lambda: pipelined(4), 'shared': shared}
    quiet, times, results = Quiet(), *({name: [] for name in ways} for _ in range(2))
    for _ in range(1 + ROUNDS):
        quiet.look()
        for name, way in ways.items():
            train = way()
            times[name] += seconds_of(lambda name=name, train=train: results[name].append(train()), 1)
    alone, naive, _, spread = seconds = [median(each[1:]) for each in times.values()]
    show.say(f'\nNow {MODELS} GPTs, a step each, in four ways. Model parallelism and GPipe cut every model into '
             f'{DEVICES} stages and train one after the other. Shared: a model is spilled to the host, and a device '
             f'that is free takes the next shard of the model that has most left to do.')
    table = headed(f'{MODELS} models on {DEVICES} devices; medians of {ROUNDS} rounds', '', 'seconds',
                   'times as fast\nas one device')
    for name, value in zip(ways, seconds):
        table.add_row(name, f'{value:.2f}', f'{alone / value:.2f}')
    show.table(table)
    waiting = median(results['model parallelism'][1:])   # as everything else: the first round warms up
    busy = median(trained.shared.utilisation for trained in results['shared'][1:])
    show.claims.test('C35', quiet.verdict(keeps_busy(busy, waiting, naive, spread)),
                     f'shared by {MODELS} models {DEVICES} devices compute {busy:.0%} of the time, and in model '
                     f'parallelism {1 - waiting:.0%}; all is done {naive / spread:.2f} times as fast{quiet.note}.',
                     because='A spilled model computes every forward twice but that of the last shard, which model '
                             'parallelism does not; and at the end some devices find no model that is free.')
    return results['shared'][-1]


def planned(show: Show) -> None:
    """C38: more devices than this machine has cores, in virtual time."""
    show.say('\nThe same with more devices than this machine has cores, in virtual time: 16 models, 5 '
             'mini-batches each.')
    table = headed('Simulated, in units of one forward of a shard', 'devices', 'model\nparallelism',
                   'GPipe, 4\nmicro-batches', 'GPipe, 32\nmicro-batches', 'shared', 'busy when\nshared')
    against: dict[int, tuple[float, float, float]] = {}
    for count in (4, 8):
        naive, few, many = (80 * virtual_pipeline(count, chunks) for chunks in (1, 4, 32))
        units = [1.0] * (count - 1) + [3.0] + [3.0] * (count - 1)   # a backward takes two, and a recompute one
        ours = plan([Chain(units, 5, [0.5] * len(units))] * 16, count)
        against[count] = naive / ours.makespan, 1 - ours.makespan / few, 1 - ours.makespan / many
        table.add_row(str(count), *(f'{value:.0f}' for value in (naive, few, many, ours.makespan)),
                      f'{ours.utilisation:.0%}')
    show.table(table)
    times, few, many = against[8]
    show.claims.test('C38', is_that_much_faster(times, (few, many)), f'on 8 devices {times:.1f} times as fast as model '
                     f'parallelism, and {few:.0%} less time than GPipe with 4 micro-batches, {many:.0%} with 32.',
                     by='the simulator',
                     because='The four times hold. GPipe fills its devices with enough micro-batches, which cost '
                             'nothing here; 90 % less takes a GPipe whose bubble is nine tenths of its time.')


def picture(models: dict[str, Spilled], trained: Trained) -> Figure:
    figure = plot.Picture(figsize=(9.5, 9.0), layout='constrained')
    first, second, third = figure.subplots(3, 1, height_ratios=(3, 3, 4))
    longest = max(visit.end for model in models.values() for visit in since_start(model.visits))
    for ax, (name, model) in zip((first, second), models.items()):
        lanes(ax, since_start(model.visits), f'One model, {name}, one step: what is done with which shard', longest)
    plot.tasks(together(trained.shared), third, worker='device',
               title=f'{len(trained.losses)} models share {DEVICES} devices: which shard of which, in one step of each')
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


def together(run: Shared) -> list[plot.Task]:
    return [plot.Task(one.device, f'model {one.model}', run.chains[one.model].shard(one.number), one.start, one.end)
            for one in sorted(run.done, key=lambda one: (one.model, one.start))]
