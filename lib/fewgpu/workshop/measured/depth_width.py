"""What it costs to train GPTs of 2.2 and 3.8 billion parameters on 64 devices of 16 GB, by PipeDream-2BW's planner.

Nothing runs: seconds and bytes are those of the planner's cost model, of closed forms for the layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fewgpu.planner import Block, Machines, Setting
from fewgpu.planner.known import known
from fewgpu.planner.model import Model, Sizes

CLUSTER = Machines(64, 65e9, per_server=8, between=25e9 / 8, memory=16e9)
SPEED = 45e12                # FLOP/s of a device (published, of a GPT of 355M)
START = 1e-3                 # seconds to start the kernels of a layer (assumed)
MODELS = {'2.2B': known('gpt-2.2B'), '3.8B': known('gpt-3.8B')}
BATCHES = (64, 128, 256, 512)
MICRO_BATCHES = (1, 2, 4, 8)
NUMBER, STATE = 2, 14        # bytes: of a number (of weights, of a stash); of a parameter's gradient and Adam's state

Rule = Callable[[Setting], bool]

KINDS: dict[str, Rule] = {
    'data parallel': lambda one: one.depth == 1,
    'layers over devices, no pipeline': lambda one: one.depth > 1 and not one.pipelined,
    '2BW without recompute': lambda one: one.pipelined and not one.recompute,
    '2BW with recompute': lambda one: one.pipelined and one.recompute,
}
KNOBS: dict[str, Callable[[Setting], object]] = {
    'width and depth': lambda one: (one.width, one.depth), 'micro-batch': lambda one: one.micro_batch,
    'recompute': lambda one: one.recompute}


def blocks(model: Model) -> list[Block]:
    """The layers as the planner wants them."""
    inputs = [model.sample, *(layer.output for layer in model.layers)]
    return [_block(layer, numbers) for layer, numbers in zip(model.layers, inputs)]


def _block(layer: Sizes, inputs: float) -> Block:
    flops = layer.flops + layer.gradient_flops
    return Block(lambda rows: rows * flops / SPEED + START, NUMBER * layer.parameters, NUMBER * layer.stash,
                 NUMBER * inputs, STATE * layer.parameters)


def rates_of(model: Model, by_batch: dict[int, list[Setting]]) -> dict[str, list[float]]:
    """Rows a second by batch; 0 where nothing fits."""
    layers, no_pipeline = blocks(model), KINDS['layers over devices, no pipeline']
    return {
        '2BW': [fastest(plan, lambda one: one.pipelined) for plan in by_batch.values()],
        'flush': [_flushed(plan, layers, lambda one: one.depth) for plan in by_batch.values()],
        'GPipe': [_flushed(plan, layers, lambda one: one.micro_batches) for plan in by_batch.values()],
        'no pipeline': [fastest(plan, no_pipeline) for plan in by_batch.values()],
        'tensors over 64': [_tensors(with_heads(model, CLUSTER.devices), batch) for batch in by_batch],
    }


def fastest(plan: Sequence[Setting], rule: Rule) -> float:
    """Rows a second of the fastest setting of that kind that fits; 0 if none does."""
    return max((one.throughput for one in plan if rule(one) and not one.dropped), default=0.0)


def _flushed(plan: Sequence[Setting], layers: Sequence[Block], kept: Callable[[Setting], int]) -> float:
    """The best with one weight version and a flush each update: m of m + d - 1 steps are of use.

    `kept`: micro-batches in flight. GPipe (arXiv 1811.06965): m; PipeDream-Flush: d, if there are so many.
    """
    best = 0.0
    for one in filter(lambda one: one.pipelined, plan):
        flight = min(kept(one), one.micro_batches)
        ends = [sum(one.balance[:stage]) for stage in range(one.depth + 1)]
        if max(_held(layers[start:end], one, flight) for start, end in zip(ends, ends[1:])) <= CLUSTER.memory:
            best = max(best, one.throughput * one.micro_batches / (one.micro_batches + one.depth - 1))
    return best


def _held(stage: Sequence[Block], one: Setting, flight: int) -> float:
    """Bytes of a stage with one weight version and so many micro-batches in flight."""
    stashes = sum(block.activation_bytes for block in stage) * (1 if one.recompute else flight)
    return (sum(block.weight_bytes + block.state_bytes for block in stage)
            + one.micro_batch * (stashes + flight * stage[0].input_bytes))


def with_heads(model: Model, heads: int) -> Model:
    """With so many heads, of the same width in all: the scores of each are kept, 2.5 numbers a pair of tokens.

    Raises ValueError if they do not divide the width.
    """
    tokens = model.sample
    width = next(layer.output for layer in model.layers if layer.reduced) / tokens
    if width % heads:
        raise ValueError(f'{heads} heads do not divide {width:g}')
    more = 2.5 * (heads - model.heads) * tokens**2
    return replace(model, heads=heads, layers=tuple(
        replace(layer, stash=layer.stash + more) if layer.reduced else layer for layer in model.layers))


def _tensors(model: Model, batch: int) -> float:
    """Every layer split over all devices, a head or more each (arXiv 2104.04473): the best micro-batch that fits."""
    ranks, best = CLUSTER.devices, 0.0
    if model.heads % ranks:
        raise ValueError(f'{model.heads} heads cannot be split over {ranks} ranks')
    whole = model.stages(1, ranks)[0]   # what a rank has of all layers
    for rows in (rows for rows in (*MICRO_BATCHES, 16, 32, 64) if batch % rows == 0):
        memory = (NUMBER + STATE) * whole.parameters + NUMBER * rows * whole.stash
        if memory <= CLUSTER.memory:
            compute = START * whole.layers + rows * (whole.forward + whole.backward) / SPEED
            moved = NUMBER * 2 * rows * whole.reduced * 2 * (ranks - 1) / ranks   # forward and backward; a ring
            best = max(best, rows / (compute + moved / CLUSTER.outside))
    return best


def largest_model(depth: int) -> float:
    """Parameters of the largest GPT with layers as those of gpt-3.8B that fits so many stages, with recompute."""
    layer = MODELS['3.8B'].layers[1]
    block = _block(layer, layer.output)
    own = 2 * block.weight_bytes + block.state_bytes + block.activation_bytes
    return depth * ((CLUSTER.memory - depth * block.input_bytes) // own) * layer.parameters


def worth(plans: Sequence[Sequence[Setting]]) -> dict[str, float]:
    """What it gains to choose: by knob, how much faster the best settings are, at worst, than those with the one
    value of that knob for all plans that suits them best. inf if no value fits all."""
    best = [fastest(plan, lambda one: True) for plan in plans]
    gains = {}
    for knob, value_of in KNOBS.items():
        fixed = [{} for _ in plans]
        for plan, rates in zip(plans, fixed):
            for one in plan:
                if not one.dropped:
                    rates[value_of(one)] = max(rates.get(value_of(one), 0.0), one.throughput)
        values = set.intersection(*map(set, fixed))
        gains[knob] = min((max(most / rates[value] for most, rates in zip(best, fixed)) for value in values),
                          default=float('inf'))
    return gains


def by_depth(plan: Sequence[Setting], recompute: bool) -> dict[int, float]:
    """The best throughput of each power of two as depth; only what fits."""
    depths = [2**power for power in range(1, 7)]
    rates = {d: fastest(plan, lambda one: one.pipelined and one.depth == d and one.recompute == recompute)
             for d in depths}
    return {depth: rate for depth, rate in rates.items() if rate}


def slows_with_depth(plan: Sequence[Setting], b: int) -> bool:
    """Is the throughput of each power of two as depth lower than of the one before, at this micro-batch?"""
    some = [one for one in plan if one.micro_batch == b]
    curves = [list(by_depth(some, recompute).values()) for recompute in (False, True)]
    return all(curve == sorted(curve, reverse=True) for curve in curves)


def any_recompute(plan: Sequence[Setting]) -> dict[int, float]:
    """The same, with recompute or without, whichever is faster."""
    curves = by_depth(plan, False), by_depth(plan, True)
    return {depth: max(curve.get(depth, 0.0) for curve in curves)
            for depth in sorted({*curves[0], *curves[1]})}
