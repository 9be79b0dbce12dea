"""Passes: what is added to the forwards and backwards of a schedule, never written by hand."""

from collections.abc import Iterator
from dataclasses import replace

from fewgpu.schedule.op import Op, activation, gradient, share, target
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


def with_messages(schedule: Schedule, *, targets: bool = False) -> Schedule:
    """Put a receive before, and a send after, every forward and backward.

    A recompute needs no message, so it may run before the gradient has come. The pipeline's ends
    (see `Message`) send and receive like any other stage. With `targets` the last stage receives
    those, too. Before an update of a stage on several devices, each sends its gradients to the others.
    """
    last = schedule.stages - 1

    def expand(device: int, row: tuple[Op, ...]) -> Iterator[Op]:
        for op in row:
            _, stage, i, _ = op
            if op.kind == 'U':
                others = schedule.replicas_beside(stage, device)
                yield from (Op('send', stage, i, share(op, device, other)) for other in others)
                yield from (Op('recv', stage, i, share(op, other, device)) for other in others)
            if op.kind == 'F':
                arrives, leaves = activation(stage, i), activation(stage + 1, i)
            elif op.kind in BACKWARDS:
                arrives, leaves = gradient(stage, i), gradient(stage - 1, i)
            else:
                yield op
                continue
            yield Op('recv', stage, i, arrives)
            if targets and op.kind == 'F' and stage == last:
                yield Op('recv', stage, i, target(stage, i))
            yield op
            yield Op('send', stage, i, leaves)

    return replace(schedule, rows=tuple(tuple(expand(*pair)) for pair in enumerate(schedule.rows)))
