"""Training without a flush: the bubble goes, old weights stay, and gradients come late

The same network trains by 1F1B with a flush after every mini-batch, and by PipeDream (arXiv 1806.03377)
without: how idle devices are, how many versions of its weights a stage keeps, what a gradient is worth
that meets other weights in its backward than in its forward, and what delay costs in training.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import torch
from matplotlib.figure import Figure
from rich.table import Table
from torch import nn

from fewgpu import Pipeline, get_devices, plot
from fewgpu.schedule import Schedule, one_f_one_b, pipedream, versions_alive, with_updates
from fewgpu.schedule.long_runs import following
from fewgpu.simulate import simulate
from fewgpu.trace import Timeline
from fewgpu.workshop.demos import WITH_A_RUN, Show
from fewgpu.workshop.digits import Batch, accuracy, mini_batches, network, smooth, unseen_digits
from fewgpu.workshop.late import gradient_error
from fewgpu.workshop.noise import Quiet, both

STAGES, ROWS, RATE, RUN = 4, 32, 0.3, 240
MEASURED = 'measured, 2 devices'
RULES: dict[str, str | Callable[[int, int], Schedule]] = {
    'synchronous': '1f1b', 'stashing': 'pipedream', 'vertical sync': partial(pipedream, vertical_sync=True),
    'no stashing': partial(pipedream, stashing=False)}


def demo(show: Show) -> Figure:
    show.say(f'A network of {STAGES} layers, a stage each, learns MNIST by mini-batches of {ROWS}. With a flush '
             f'(1F1B, four micro-batches a mini-batch) a pipeline drains after each of them; PipeDream admits '
             f'the next one at once, and an update follows every backward.')
    quiet = Quiet()
    idle, timelines = bubbles(quiet)
    kept, batches = versions(), mini_batches(RUN, ROWS)
    errors = {name: gradient_error(RULES[name]) for name in ('stashing', 'no stashing')}
    curves, found = curves_of(batches)
    show.table(of_bubbles(idle))
    show.table(of_rules(kept, errors, curves, found))
    show.say(f'Vertical sync lets every stage take the version that the first one took: the weights of all stages, and '
             f'not of the first alone, are {STAGES - 1} updates old. That is why it learns most slowly at a learning '
             f'rate as high as this.' * (fmean(curves['vertical sync']) > fmean(curves['stashing'])))
    verdicts(show, idle, kept, errors, curves, quiet)
    return picture(timelines, curves)


def bubbles(quiet: Quiet) -> tuple[dict[tuple[str, str], float], dict[str, Timeline]]:
    """The idle share, measured on two paced devices and simulated on four, of twelve mini-batches."""
    m, count = 4, 12
    idle = {}
    for name, schedule in (('with a flush', '1f1b'), ('without', 'pipedream')):
        layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(10)]
        pipeline = Pipeline(nn.Sequential(*layers), [5, 5], schedule=schedule, chunks=m,
                            loss_fn=nn.functional.mse_loss, devices=get_devices(2, kind='cpu', pace=0.25),
                            optimizer=partial(torch.optim.SGD, lr=0.01))
        batch = torch.randn(m * 256, 256), torch.randn(m * 256, 256)
        quiet.look()
        pipeline.train([batch] * 2)   # first use costs
        pipeline.train([batch] * count)
        idle[name, MEASURED] = pipeline.trace.bubble
    runs = {'with a flush': following([with_updates(one_f_one_b(STAGES, m))] * count),
            'without': pipedream(STAGES, m * count)}
    for name, run in runs.items():
        idle[name, 'virtual time, 4 devices'] = simulate(run).bubble
    runs = {'1F1B, a flush after every 4 micro-batches': following([with_updates(one_f_one_b(STAGES, m))] * 4),
            'PipeDream, no flush': pipedream(STAGES, m * 4)}
    return idle, {name: simulate(run) for name, run in runs.items()}


def versions() -> dict[str, list[int]]:
    """How many versions of its weights each stage held, counted in bytes by the ledger after updates."""
    width = 64
    kept = {}
    for name, schedule in RULES.items():
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(STAGES)))
        devices = get_devices(STAGES, kind='cpu')
        for device in devices:
            device.meter()
        pipeline = Pipeline(model, [1] * STAGES, schedule=schedule, loss_fn=nn.functional.mse_loss,
                            devices=devices, optimizer=partial(torch.optim.SGD, lr=0.1))
        row = torch.zeros(1, width)
        pipeline.train([(row, row)] * 12)
        kept[name] = [max(span.live // (4 * width * width) for span in spans if span.op.kind == 'U')
                      for spans in pipeline.trace.rows]
    return kept


def curves_of(batches: Sequence[Batch]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """All losses of a training by each rule, at the same learning rate, and the accuracy at its end."""
    curves, found, unseen = {}, {}, unseen_digits()
    for name, schedule in RULES.items():
        model = network(STAGES)
        losses = Pipeline(model, [1] * STAGES, schedule=schedule, loss_fn=nn.functional.cross_entropy,
                          devices=get_devices(STAGES, kind='cpu'),
                          optimizer=partial(torch.optim.SGD, lr=RATE)).train(batches)
        curves[name], found[name] = [loss.item() for loss in losses], accuracy(model, unseen)
    return curves, found


def of_bubbles(idle: dict[tuple[str, str], float]) -> Table:
    table = Table(title='The bubble: the share of the time that devices idle, of twelve mini-batches',
                  title_justify='left')
    wheres = dict.fromkeys(where for _, where in idle)
    for heading in ('', *wheres):
        table.add_column(heading, justify='right' if heading else 'left')
    for name in dict.fromkeys(name for name, _ in idle):
        table.add_row(name, *(f'{idle[name, where]:.0%}' for where in wheres))
    return table


def of_rules(kept: dict, errors: dict, curves: dict, found: dict) -> Table:
    table = Table(title=f'{STAGES} stages, learning rate {RATE}, {RUN} mini-batches of {ROWS}', title_justify='left',
                  caption='Gradient off by: from that of the weights that its forward took. -: not measured; a '
                          'gradient is right by definition if nothing is late, and by one version for all stages '
                          '(vertical sync).',
                  caption_justify='left')
    for heading in ('rule', 'weight versions\na stage', 'gradient\noff by', 'mean\nloss', 'accuracy,\nunseen'):
        table.add_column(heading, justify='left' if heading == 'rule' else 'right')
    for name in RULES:
        error = f'{errors[name]:.1e}' if name in errors else '-'
        table.add_row(name, ', '.join(map(str, kept[name])), error, f'{fmean(curves[name]):.2f}',
                      f'{found[name]:.1%}')
    return table


def verdicts(show: Show, idle: dict, kept: dict, errors: dict, curves: dict, quiet: Quiet) -> None:
    said = versions_alive(pipedream(STAGES, 12))
    show.claims.test(
        'C24', is_valid_at_a_price(errors, kept, said),
        f'With stashing the gradient is the one of the weights that the forward took (off by '
        f'{errors["stashing"]:.0e}), without it is off by {errors["no stashing"]:.1%}. The price: '
        f'{", ".join(map(str, kept["stashing"]))} weight versions, counted in bytes, on stages 0 to {STAGES - 1}.',
        because=f'Valid is not the same as fresh: the gradient is still late. The mean loss of the run is '
                f'{fmean(curves["stashing"]):.2f} with stashing and {fmean(curves["no stashing"]):.2f} without.')
    places = dict.fromkeys(where for _, where in idle)
    losses = fmean(curves['stashing']), fmean(curves['synchronous'])
    simulated = {key: share for key, share in idle.items() if key[1] != MEASURED}
    show.claims.test(
        'C34', both(is_filled_at_a_price(simulated, *losses), quiet.verdict(is_filled_at_a_price(idle, *losses))),
        'The first half of it, here: without a flush devices idle ' + ', '.join(
            f'{idle["without", where]:.0%} instead of {idle["with a flush", where]:.0%} ({where})'
            for where in places)
        + f'{quiet.note}; the mean loss over the same samples is {losses[0]:.2f} instead of {losses[1]:.2f}. The '
        f'second half, PipeMare, is judged by the demo pipemare.', by=f'{WITH_A_RUN}the simulator',
        because='What is left of the bubble is the start and the end of a run of twelve mini-batches.')


def is_valid_at_a_price(errors: dict[str, float], kept: dict[str, list[int]], said: list[int]) -> bool:
    """C24: only with stashing is a gradient that of the weights of its forward, and a stage then keeps as many
    versions as the schedule has in flight (`said`), else one."""
    return (errors['stashing'] < 1e-9 < 1e-3 < errors['no stashing'] and kept['stashing'] == said
            and max(said) > 1 and set(kept['no stashing']) == {1})


def is_filled_at_a_price(idle: dict[tuple[str, str], float], late: float, synchronous: float) -> bool:
    """C34, its first half: much of the bubble goes, in each place, and the loss of late gradients is larger."""
    return (all(share < 0.6 * idle['with a flush', where] for (how, where), share in idle.items() if how == 'without')
            and late > synchronous)


def picture(timelines: dict[str, Timeline], curves: dict[str, list[float]]) -> Figure:
    figure = plot.Picture(figsize=(9.0, 8.6), layout='constrained')
    axes = figure.subplots(3, height_ratios=[2.4, 2.4, 3.2])
    plot.timelines(timelines, axes[:2], unit='units')
    plot.lines({name: ([*range(0, RUN, 8)], [min(loss, 3.0) for loss in smooth(losses)[::8]])
                for name, losses in curves.items()}, axes[2],
               title=f'Loss at learning rate {RATE} (cut off at 3)', x='mini-batches', y='mean of the last 20')
    return figure
