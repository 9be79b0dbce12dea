"""PipeDream-2BW's planner: how deep, how wide, which micro-batch, for two GPTs on 64 devices of 16 GB"""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from rich.table import Table

from fewgpu import plot
from fewgpu.planner import Block, Machines, Setting, settings
from fewgpu.plot.looks import size
from fewgpu.workshop.demos import Show

CLUSTER = Machines(64, 65e9, per_server=8, between=25e9 / 8, memory=16e9)
TOKENS, WORDS = 512, 51200   # of a row; of the vocabulary
SPEED = 45e12                # FLOP/s of a device (published, of a GPT of 355M)
START = 1e-3                 # seconds to start the kernels of a block (assumed)
MODELS = {'2.2B': (48, 1920, 20), '3.8B': (64, 2192, 16)}   # blocks, hidden size, heads: of published totals
BATCHES = (64, 128, 256, 512)
MICRO_BATCHES = (1, 2, 4, 8)
BYTES = 2, 14                # a parameter: a version; gradient and Adam's state of mixed precision

Rule = Callable[[Setting], bool]


def demo(show: Show) -> Figure:
    show.say('The planner prices every width, depth and micro-batch, with and without recompute, for GPTs of '
             'closed form (arXiv 2104.04473: parameters and FLOPs of equal blocks; activations of a block '
             f'as in arXiv 2401.10241) on {CLUSTER.devices} devices of 16 GB, 8 a server, 65 GB/s inside and '
             f'25 Gbit/s between servers, {SPEED / 1e12:g} TFLOP/s and {START * 1e3:g} ms a block and '
             'micro-batch to start. Nothing runs: all figures are the model\'s. Blocks, hidden sizes, links '
             'and the start are ours.')
    plans = {name: {batch: settings(_gpt(*shape), CLUSTER, batch, micro_batches=MICRO_BATCHES)
                    for batch in BATCHES} for name, shape in MODELS.items()}
    for name, by_batch in plans.items():
        _show_kinds(show, name, by_batch[BATCHES[-1]])
    rates = {name: _rates(name, by_batch) for name, by_batch in plans.items()}
    _show_rates(show, rates)
    _claims(show, plans, rates)
    return _picture(plans, rates)


def _gpt(layers: int, hidden: int, heads: int) -> list[Block]:
    parameters = _parameters(layers, hidden)
    # 3/4 of the published FLOPs, which recompute: the planner adds that itself.
    flops = 72 * TOKENS * layers * hidden**2 * (1 + TOKENS / (6 * hidden) + WORDS / (16 * layers * hidden))
    weights, state = (count * parameters / layers for count in BYTES)
    block = Block(lambda rows: rows * flops / layers / SPEED + START, weights,
                  TOKENS * (34 * hidden + 5 * heads * TOKENS), 2 * TOKENS * hidden, state)
    return [block] * layers


def _parameters(layers: int, hidden: int) -> float:
    return 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (WORDS + TOKENS) / (12 * layers * hidden))


KINDS: dict[str, Rule] = {
    'data parallel': lambda one: one.depth == 1,
    'layers over devices, no pipeline': lambda one: one.depth > 1 and not one.pipelined,
    '2BW without recompute': lambda one: one.pipelined and not one.recompute,
    '2BW with recompute': lambda one: one.pipelined and one.recompute,
}


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
                              ['', '', '', f'{size(least.memory)} at least', 'does not fit']))
    show.table(table)


def _rates(name: str, by_batch: dict[int, list[Setting]]) -> dict[str, list[float]]:
    """Rows a second by batch; 0 where nothing fits."""
    layers, hidden, _ = MODELS[name]
    block = _gpt(*MODELS[name])[0]
    no_pipeline = KINDS['layers over devices, no pipeline']
    return {
        '2BW': [_best(plan, lambda one: one.pipelined) for plan in by_batch.values()],
        'flush': [_flushed(plan, block, lambda one: one.depth) for plan in by_batch.values()],
        'GPipe': [_flushed(plan, block, lambda one: one.micro_batches) for plan in by_batch.values()],
        'no pipeline': [_best(plan, no_pipeline) for plan in by_batch.values()],
        'tensors over 64': [_tensors(block, layers, hidden, batch) for batch in by_batch],
    }


def _best(plan: Sequence[Setting], rule: Rule) -> float:
    return max((one.throughput for one in plan if rule(one) and not one.dropped), default=0.0)


def _flushed(plan: Sequence[Setting], block: Block, kept: Callable[[Setting], int]) -> float:
    """The best with one weight version and a flush each update: m of m + d - 1 steps are of use.

    `kept`: micro-batches in flight. GPipe (arXiv 1811.06965): m; PipeDream-Flush: d, if there are so many.
    """
    best = 0.0
    for one in filter(lambda one: one.pipelined, plan):
        blocks, flight = max(one.balance), min(kept(one), one.micro_batches)
        memory = (blocks * (block.weight_bytes + block.state_bytes) + one.micro_batch * (
            blocks * block.activation_bytes * (1 if one.recompute else flight) + flight * block.input_bytes))
        if memory <= CLUSTER.memory:
            best = max(best, one.throughput * one.micro_batches / (one.micro_batches + one.depth - 1))
    return best


def _tensors(block: Block, layers: int, hidden: int, batch: int) -> float:
    """Every layer split over all devices (arXiv 2104.04473): the best micro-batch that fits."""
    t, best = CLUSTER.devices, 0.0
    for b in (rows for rows in (*MICRO_BATCHES, 16, 32, 64) if batch % rows == 0):
        moved = 2 * 8 * b * TOKENS * hidden * (t - 1) / t
        memory = layers * (block.weight_bytes + block.state_bytes + b * block.activation_bytes) / t
        if memory <= CLUSTER.memory:
            compute = START + (block.seconds(b) - START) / t
            best = max(best, b / (layers * (compute + moved / CLUSTER.outside)))
    return best


def _show_rates(show: Show, rates: dict[str, dict[str, list[float]]]) -> None:
    table = Table(title='Rows a second, each at its best setting', title_justify='left')
    for heading in ('model', 'kind', *(f'batch {batch}' for batch in BATCHES), '2BW is, up to'):
        table.add_column(heading, justify='left' if heading in ('model', 'kind') else 'right')
    for name, kinds in rates.items():
        for kind, row in kinds.items():
            table.add_row(name, kind, *(f'{rate:.1f}' if rate else 'does not fit' for rate in row),
                          f'{_most(kinds, kind):.1f}×')
    show.table(table)
    show.say('Published (arXiv 2006.09503): 2BW is up to 3.2 times GPipe, 1.6 times flush, 6.1 times layers '
             'over devices, and 20 times tensors over devices.')


def _most(kinds: dict[str, list[float]], other: str) -> float:
    """By how much 2BW is ahead, at most."""
    return max(ours / theirs for ours, theirs in zip(kinds['2BW'], kinds[other]) if theirs)


def _by_depth(plan: Sequence[Setting], recompute: bool) -> dict[int, float]:
    """The best throughput of each power of two as depth; only what fits."""
    depths = [2**power for power in range(1, 7)]
    rates = {d: _best(plan, lambda one: one.pipelined and one.depth == d and one.recompute == recompute)
             for d in depths}
    return {depth: rate for depth, rate in rates.items() if rate}


def _largest(depth: int) -> float:
    """Parameters of the largest GPT of 2,192 hidden units that fits so many stages, with recompute."""
    block = _gpt(*MODELS['3.8B'])[0]
    own = 2 * block.weight_bytes + block.state_bytes + block.activation_bytes
    return depth * ((CLUSTER.memory - depth * block.input_bytes) // own) * block.weight_bytes / BYTES[0]


def _claims(show: Show, plans: dict[str, dict[int, list[Setting]]],
            rates: dict[str, dict[str, list[float]]]) -> None:
    _faster(show, rates)
    _deeper(show, plans, rates)
    chosen = {name: [by_batch[batch][0] for batch in BATCHES] for name, by_batch in plans.items()}
    names = {name: [_name(one) for one in ones] for name, ones in chosen.items()}
    fit = not any(one.dropped for ones in chosen.values() for one in ones)
    show.claims.test(
        'C33', fit and any(len(set(some)) > 1 for some in names.values()),
        f'chosen for batches {", ".join(map(str, BATCHES))}: '
        + '; '.join(f'{name} {", ".join(some)}' for name, some in names.items())
        + ' (width × depth, micro-batch, R for recompute)', by='the cost model',
        because='Costs come from closed forms here, and not from a profile.')


def _faster(show: Show, rates: dict[str, dict[str, list[float]]]) -> None:
    gpipe, tensors, layers = (max(_most(kinds, other) for kinds in rates.values())
                              for other in ('GPipe', 'tensors over 64', 'no pipeline'))
    show.claims.test(
        'C31', gpipe >= 3.2 and tensors >= 20,
        f'up to {gpipe:.1f} times GPipe and {tensors:.0f} times model parallelism that splits every layer '
        f'over 64 devices; {layers:.1f} times layers over devices', by='the cost model',
        because='Here GPipe, too, has its best setting. A bubble of d - 1 steps on m of work, m >= d, costs '
        'less than a factor of 2; more must come from memory, that forces it to recompute or to small '
        'micro-batches. Layers split between servers hang on the link, which is assumed.')


def _deeper(show: Show, plans: dict[str, dict[int, list[Setting]]],
            rates: dict[str, dict[str, list[float]]]) -> None:
    rows = [kinds['2BW'] for kinds in rates.values()]
    grows = all(row == sorted(row) and row[-1] > row[0] for row in rows)
    curves = {name: _any_recompute(by_batch[BATCHES[-1]]) for name, by_batch in plans.items()}
    shrinks = all([*curve.values()] == sorted(curve.values(), reverse=True) for curve in curves.values())
    found = [f'{name}: batch {BATCHES[0]} to {BATCHES[-1]} gives {rates[name]["2BW"][0]:.0f} to '
             f'{rates[name]["2BW"][-1]:.0f} rows/s, depth '
             + ', '.join(f'{depth}: {rate:.0f}' for depth, rate in curve.items())
             for name, curve in curves.items()]
    found.append(f'8 stages hold {_largest(8) / 1e9:.1f}, 64 stages {_largest(64) / 1e9:.0f} billion '
                 'parameters')
    alike = all(_falls(by_batch[BATCHES[-1]], b) for by_batch in plans.values() for b in MICRO_BATCHES)
    show.claims.test(
        'C32', grows and shrinks and _largest(8) < _largest(64), '; '.join(found), by='the cost model',
        because='With one and the same micro-batch and recompute deeper is never faster; but deeper leaves '
        'room for a larger micro-batch, which can be worth more.' if alike and not shrinks else
        'Each depth takes the micro-batch that is best for it.')


def _falls(plan: Sequence[Setting], b: int) -> bool:
    """Is the throughput of each power of two as depth lower than of the one before, at this micro-batch?"""
    some = [one for one in plan if one.micro_batch == b]
    curves = [list(_by_depth(some, recompute).values()) for recompute in (False, True)]
    return all(curve == sorted(curve, reverse=True) for curve in curves)


def _any_recompute(plan: Sequence[Setting]) -> dict[int, float]:
    curves = _by_depth(plan, False), _by_depth(plan, True)
    return {depth: max(curve.get(depth, 0.0) for curve in curves)
            for depth in sorted({*curves[0], *curves[1]})}


def _name(one: Setting) -> str:
    return f'{one.width}×{one.depth} b{one.micro_batch}{" R" * one.recompute}'


def _picture(plans: dict[str, dict[int, list[Setting]]], rates: dict[str, dict[str, list[float]]]) -> Figure:
    picture = plot.Picture(figsize=(9.0, 3.6), layout='constrained')
    left, right = picture.subplots(1, 2)
    layers = {kind: row for kind, row in rates['3.8B'].items() if not kind.startswith('tensors')}
    plot.lines({kind: (BATCHES, [rate or None for rate in row]) for kind, row in layers.items()}, left,
               title='GPT 3.8B, 64 devices: best of each kind', x='batch', y='rows/s', log='x')
    left.legend(loc=(0.35, 0.24), ncols=2, frameon=False, fontsize=8, handlelength=3.2)   # where no line runs
    curves = {f'{name}{", recompute" * recompute}': _by_depth(by_batch[BATCHES[-1]], recompute)
              for name, by_batch in plans.items() for recompute in (False, True)}
    plot.lines({name: (list(curve), list(curve.values())) for name, curve in curves.items() if curve}, right,
               title=f'2BW by depth, batch {BATCHES[-1]}: what fits', x='stages', y='rows/s', log='x')
    return picture
