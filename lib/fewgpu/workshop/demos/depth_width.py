"""PipeDream-2BW's planner: how deep, how wide, which micro-batch, for two GPTs on 64 devices of 16 GB"""

from collections.abc import Sequence

from matplotlib.figure import Figure
from rich.table import Table

from fewgpu import plot
from fewgpu.planner import Setting, settings
from fewgpu.plot.looks import size
from fewgpu.workshop.demos import Show
from fewgpu.workshop.measured.depth_width import (
    BATCHES, CLUSTER, KINDS, MICRO_BATCHES, MODELS, SPEED, START, any_recompute, blocks, by_depth, largest_model,
    rates_of, slows_with_depth, worth)

WORTH = 1.05                 # a choice that gains less is not one


def demo(show: Show) -> Figure:
    show.say('The planner prices every width, depth and micro-batch, with and without recompute, for the GPTs that '
             f'./workshop.py plan knows as gpt-2.2B and gpt-3.8B, on {CLUSTER.devices} devices of 16 GB, 8 a server, '
             f'65 GB/s inside and 25 Gbit/s between servers, {SPEED / 1e12:g} TFLOP/s and {START * 1e3:g} ms a layer '
             'and micro-batch to start. Nothing runs: all figures are the model\'s. Layers, hidden sizes, links and '
             'the start are ours; parameters in all, memory and TFLOP/s are published.')
    plans = {name: {batch: settings(blocks(model), CLUSTER, batch, micro_batches=MICRO_BATCHES)
                    for batch in BATCHES} for name, model in MODELS.items()}
    for name, by_batch in plans.items():
        _show_kinds(show, name, by_batch[BATCHES[-1]])
    rates = {name: rates_of(MODELS[name], by_batch) for name, by_batch in plans.items()}
    _show_rates(show, rates)
    _claims(show, plans, rates)
    return _picture(plans, rates)


def _show_kinds(show: Show, name: str, plan: Sequence[Setting]) -> None:
    table = Table(title=f'GPT {name}, batch {BATCHES[-1]}: the best of each kind of {len(plan)} settings',
                  title_justify='left')
    table.add_column('kind')
    for heading in ('width', 'depth', 'micro-batch', 'memory', 'rows/s'):
        table.add_column(heading, justify='right')
    for kind, rule in KINDS.items():
        best = next(filter(rule, plan))   # possible ones come first
        least = min(filter(rule, plan), key=lambda one: one.memory)
        table.add_row(kind, *([str(best.width), str(best.depth), str(best.micro_batch), size(best.memory),
                               f'{best.throughput:.1f}'] if not best.dropped else
                              ['-', '-', '-', f'{size(least.memory)} at least', 'no room']))
    show.table(table)


def _show_rates(show: Show, rates: dict[str, dict[str, list[float]]]) -> None:
    table = Table(title='Rows a second, each at its best setting', title_justify='left')
    for heading in ('model', 'kind', *(f'batch {batch}' for batch in BATCHES), '2BW is, up to'):
        table.add_column(heading, justify='left' if heading in ('model', 'kind') else 'right')
    for name, kinds in rates.items():
        for kind, row in kinds.items():
            table.add_row(name, kind, *(f'{rate:.1f}' if rate else 'no room' for rate in row),
                          f'{_most(kinds, kind):.1f}×')
    show.table(table)
    show.say(f'To split tensors over {CLUSTER.devices} devices takes as many heads: these models have '
             f'{" and ".join(str(model.heads) for model in MODELS.values())}, and for this row {CLUSTER.devices} of '
             f'them.')
    show.say('Published (arXiv 2006.09503): 2BW is up to 3.2 times GPipe, 1.6 times flush, 6.1 times layers '
             'over devices, and 20 times tensors over devices.')


def _most(kinds: dict[str, list[float]], other: str) -> float:
    """By how much 2BW is ahead, at most."""
    return max(ours / theirs for ours, theirs in zip(kinds['2BW'], kinds[other]) if theirs)


def _claims(show: Show, plans: dict[str, dict[int, list[Setting]]],
            rates: dict[str, dict[str, list[float]]]) -> None:
    _faster(show, rates)
    _deeper(show, plans, rates)
    chosen = {name: [by_batch[batch][0] for batch in BATCHES] for name, by_batch in plans.items()}
    names = {name: [_name(one) for one in ones] for name, ones in chosen.items()}
    gains = worth([plan for by_batch in plans.values() for plan in by_batch.values()])
    show.claims.test(
        'C33', chooses_all(gains),
        f'chosen for batches {", ".join(map(str, BATCHES))}: '
        + '; '.join(f'{name} {", ".join(some)}' for name, some in names.items())
        + ' (width × depth, micro-batch, R for recompute). One setting for all of these, in place of a choice for '
        'each, costs, at worst: ' + ', '.join(_cost(knob, gain) for knob, gain in gains.items())
        + f'; a choice is worth it from {WORTH - 1:.0%} on', by='the cost model',
        because='Costs come from closed forms here, and not from a profile; the demo plan has one.'
        + ' Recompute is not worth it for these models: other depths leave room enough.' * (gains['recompute'] < WORTH))


def chooses_all(gains: dict[str, float]) -> bool:
    """C33: no knob can be left as it is."""
    return all(gain >= WORTH for gain in gains.values())


def _cost(knob: str, gain: float) -> str:
    return f'{knob} {gain - 1:.0%}' if gain < float('inf') else f'{knob}: none fits all'


def is_that_much_faster(gpipe: float, tensors: float) -> bool:
    """C31, by how many times as fast 2BW is, at most."""
    return gpipe >= 3.2 and tensors >= 20


def grows_and_falls(rows: Sequence[Sequence[float]], curves: Sequence[Sequence[float]],
                    largest: Sequence[float]) -> bool:
    """C32: speeds by batch grow, speeds by depth fall, and deeper pipelines hold larger models."""
    grows = all(list(row) == sorted(row) and row[-1] > row[0] for row in rows)
    falls = all(list(curve) == sorted(curve, reverse=True) and curve[-1] < curve[0] for curve in curves)
    return grows and falls and list(largest) == sorted(largest) and largest[0] < largest[-1]


def _faster(show: Show, rates: dict[str, dict[str, list[float]]]) -> None:
    gpipe, tensors, layers = (max(_most(kinds, other) for kinds in rates.values())
                              for other in ('GPipe', 'tensors over 64', 'no pipeline'))
    show.claims.test(
        'C31', is_that_much_faster(gpipe, tensors),
        f'up to {gpipe:.1f} times GPipe and {tensors:.0f} times model parallelism that splits every layer '
        f'over 64 devices; {layers:.1f} times layers over devices', by='the cost model',
        because='Here GPipe, too, has its best setting. A bubble of d - 1 steps on m of work, m >= d, costs '
        'less than a factor of 2; more must come from memory, that forces it to recompute or to small '
        'micro-batches. Layers split between servers hang on the link, which is assumed.')


def _deeper(show: Show, plans: dict[str, dict[int, list[Setting]]],
            rates: dict[str, dict[str, list[float]]]) -> None:
    rows = [kinds['2BW'] for kinds in rates.values()]
    curves = {name: any_recompute(by_batch[BATCHES[-1]]) for name, by_batch in plans.items()}
    speeds = [[*curve.values()] for curve in curves.values()]
    is_so = grows_and_falls(rows, speeds, [largest_model(8), largest_model(64)])
    found = [f'{name}: batch {BATCHES[0]} to {BATCHES[-1]} gives {rates[name]["2BW"][0]:.0f} to '
             f'{rates[name]["2BW"][-1]:.0f} rows/s, depth '
             + ', '.join(f'{depth}: {rate:.0f}' for depth, rate in curve.items())
             for name, curve in curves.items()]
    found.append(f'8 stages hold {largest_model(8) / 1e9:.1f}, 64 stages {largest_model(64) / 1e9:.0f} billion '
                 'parameters')
    alike = all(slows_with_depth(by_batch[BATCHES[-1]], b) for by_batch in plans.values() for b in MICRO_BATCHES)
    show.claims.test(
        'C32', is_so, '; '.join(found), by='the cost model',
        because='With one and the same micro-batch and recompute deeper is never faster; but deeper leaves '
        'room for a larger micro-batch, which can be worth more.' if alike and not is_so else
        'Each depth takes the micro-batch that is best for it.')


def _name(one: Setting) -> str:
    return f'{one.width}×{one.depth} b{one.micro_batch}{" R" * one.recompute}'


def _picture(plans: dict[str, dict[int, list[Setting]]], rates: dict[str, dict[str, list[float]]]) -> Figure:
    picture = plot.Picture(figsize=(9.0, 3.6), layout='constrained')
    left, right = picture.subplots(1, 2)
    layers = {kind: row for kind, row in rates['3.8B'].items() if not kind.startswith('tensors')}
    plot.lines({kind: (BATCHES, [rate or None for rate in row]) for kind, row in layers.items()}, left,
               title='GPT 3.8B, 64 devices: best of each kind', x='batch', y='rows/s', log='x')
    left.legend(loc=(0.35, 0.24), ncols=2, frameon=False, fontsize=8, handlelength=3.2)   # where no line runs
    curves = {f'{name}{", recompute" * recompute}': by_depth(by_batch[BATCHES[-1]], recompute)
              for name, by_batch in plans.items() for recompute in (False, True)}
    plot.lines({name: (list(curve), list(curve.values())) for name, curve in curves.items() if curve}, right,
               title=f'2BW by depth, batch {BATCHES[-1]}: what fits', x='stages', y='rows/s', log='x')
    return picture
