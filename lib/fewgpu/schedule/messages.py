"""The one pass that adds communication: no schedule writes its sends and receives by hand."""

from collections.abc import Iterator
from dataclasses import replace

from fewgpu.schedule.op import ACTIVATION, GRADIENT, Message, Op
from fewgpu.schedule.schedule import Schedule


def with_messages(schedule: Schedule) -> Schedule:
    """Put a receive before, and a send after, every forward and backward.

    A recompute needs no message, so it may run before the gradient has come. The pipeline's ends
    (see `Message`) send and receive like any other stage.
    """
    return replace(schedule, rows=tuple(tuple(_expand(row)) for row in schedule.rows))


def _expand(row: tuple[Op, ...]) -> Iterator[Op]:
    for op in row:
        what, onward = {'F': (ACTIVATION, 1), 'B': (GRADIENT, -1), 'I': (GRADIENT, -1)}.get(
            op.kind, (None, 0))
        if what is None:
            yield op
            continue
        stage, i = op.stage, op.micro_batch
        yield Op('recv', stage, i, Message(what, stage, i))
        yield op
        yield Op('send', stage, i, Message(what, stage + onward, i))
