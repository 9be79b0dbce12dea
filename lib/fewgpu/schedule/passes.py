"""Passes: what is added to the forwards and backwards of a schedule, never written by hand."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fewgpu.schedule.op import Op, Skip, activation, gradient, share, target
from fewgpu.schedule.schedule import Schedule

CHECKPOINTS = ('always', 'except_last', 'never')
BACKWARDS = ('B', 'I')   # they need the graph, and the gradient from downstream


def with_recompute(schedule: Schedule, checkpoint: str) -> Schedule:
    """Put a recompute before the backward of some micro-batches (arXiv 1811.06965, section 2.3).

    'always' is all of them and 'never' none. 'except_last' exempts those whose backward directly
    follows their forward: the graph is still there, so to recompute it would save no memory. In
    GPipe that is the last micro-batch of each stage.

    Raises ValueError if there is no such mode.
    """
    if checkpoint not in CHECKPOINTS:
        raise ValueError("checkpoint is not one of 'always', 'except_last', or 'never'")
    if checkpoint == 'never':
        return schedule

    def expand(row: tuple[Op, ...]) -> Iterator[Op]:
        for before, op in zip((None, *row), row):
            directly = before == Op('F', op.stage, op.micro_batch)
            if op.kind in BACKWARDS and not (directly and checkpoint == 'except_last'):
                yield Op('R', op.stage, op.micro_batch)
            yield op

    return replace(schedule, rows=tuple(tuple(expand(row)) for row in schedule.rows))


def with_updates(schedule: Schedule) -> Schedule:
    """Let every stage update its weights after its last backward, unless the schedule says itself
    when they are updated.

    Stages that live on several devices do so at the end of the rows, in the same order everywhere: else
    two devices that hold the same stages might wait for each other's gradients.
    """
    if any(op.kind == 'U' for op in schedule):
        return schedule
    single = schedule.device_of

    def expand(row: tuple[Op, ...]) -> Iterator[Op]:
        last = {op.stage: position for position, op in enumerate(row)}
        for position, op in enumerate(row):
            yield op
            if position == last[op.stage] and op.stage in single:
                yield Op('U', op.stage)
        yield from (Op('U', stage) for stage in sorted(last.keys() - single.keys()))

    return replace(schedule, rows=tuple(tuple(expand(row)) for row in schedule.rows))


def with_skips(schedule: Schedule, skips: Iterable[Skip]) -> Schedule:
    """The schedule of a model with long skips: `with_messages` will send them, and their gradients.

    A forward sends them after its activation, and the forward that loads them waits for them; so do
    backwards with their gradients, the other way. They follow the activations' ways in large steps, so
    no device waits for ever that did not do so before.

    Raises ValueError for a skip that does not lead from a stage to a later one.
    """
    skips = tuple(skips)
    for skip in skips:
        if not 0 <= skip.source < skip.stage < schedule.stages:
            raise ValueError(f'a skip leads from a stage to a later one of the {schedule.stages}, not from '
                             f'{skip.source} to {skip.stage}')
    return replace(schedule, skips=skips)


def with_messages(schedule: Schedule, *, targets: bool = False) -> Schedule:
    """Put a receive before, and a send after, every forward and backward.

    A recompute needs no message, so it may run before the gradient has come. The pipeline's ends
    (see `Message`) send and receive like any other stage. With `targets` the last stage receives
    those, too. Before an update of a stage on several devices, each sends its gradients to the others.
    Skips (see `with_skips`) have messages of their own.
    """
    last = schedule.stages - 1
    stages = range(schedule.stages)
    imports = {stage: [skip for skip in schedule.skips if skip.stage == stage] for stage in stages}
    exports = {stage: [skip for skip in schedule.skips if skip.source == stage] for stage in stages}

    def expand(device: int, row: tuple[Op, ...]) -> Iterator[Op]:
        for op in row:
            _, stage, i, _ = op
            if op.kind == 'U':
                others = schedule.replicas_beside(stage, device)
                yield from (Op('send', stage, i, share(op, device, other)) for other in others)
                yield from (Op('recv', stage, i, share(op, other, device)) for other in others)
            if op.kind == 'F':
                arrives = activation(stage, i), *(skip.activation(i) for skip in imports[stage])
                leaves = activation(stage + 1, i), *(skip.activation(i) for skip in exports[stage])
            elif op.kind in BACKWARDS:
                arrives = gradient(stage, i), *(skip.gradient(i) for skip in exports[stage])
                leaves = gradient(stage - 1, i), *(skip.gradient(i) for skip in imports[stage])
            else:
                yield op
                continue
            yield from (Op('recv', stage, i, message) for message in arrives)
            if targets and op.kind == 'F' and stage == last:
                yield Op('recv', stage, i, target(stage, i))
            yield op
            yield from (Op('send', stage, i, message) for message in leaves)

    return replace(schedule, rows=tuple(tuple(expand(*pair)) for pair in enumerate(schedule.rows)))
