"""Tasks: workers that do the steps of a piece of work, item by item; one row a worker."""

from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewgpu.plot.looks import IDLE, Look, add_patch, head, label_rows, new_axes, row_end, say, time_axis, time_unit
from fewgpu.plot.spans import LANE, Inside

# Face, edge, hatching and ink of the first, second, ... step: told apart in grey, too.
LOOKS = (('#b4d2ea', '#6d9cc0', '', '#10222f'), ('#ffe9b8', '#d59a1e', '/////', '#10222f'),
         ('#1f5583', '#10324f', '', 'white'), ('#e7c9e0', '#a0508b', '....', '#10222f'),
         ('#3f8f8b', '#1d5653', '', 'white'), ('#d9d9d9', '#333333', 'xxxx', '#10222f'))
MOVING, THIN = Look('moving', '#3a3a3a', '#f1f1f1'), 0.12   # thin bars between two rows


class Task(NamedTuple):
    """One step of one item, done by a worker from `start` to `end` (seconds)."""

    worker: int
    step: str
    item: int
    start: float
    end: float


def tasks(done: Iterable[Task], ax: Axes | None = None, *, moves: Iterable[Task] = (), title: str = '',
          unit: str = '', span: float | None = None, worker: str = 'worker') -> Figure:
    """Draw one row a worker, a bar a task with the number of its item; a colour and hatching a step.

    What is left of a row is idle, until the last task of all has ended; the worker's busy share
    stands at the row's end. Steps stand in the key in the order in which they come up in `done`.
    `moves` are items on their way from their worker to the one below: thin bars between the rows.
    `span` (seconds) is the length of the time axis, by default until that end. `unit` is what a
    second is called where time is virtual, and `worker` what one who works is called.

    Raises ValueError if nothing was done, or if there are more steps than can be told apart.
    """
    done, moves = list(done), list(moves)
    if not done:
        raise ValueError('there is no task to draw: nothing was done')
    looks = _looks_of(dict.fromkeys(task.step for task in done))
    rows = range(1 + max(task.worker for task in done))
    end = max(task.end for task in done)
    ax = ax or new_axes(8.0, 1.1 + 0.42 * len(rows))
    busy, digits = [0.0 for _ in rows], len(str(max(task.item for task in done)))
    for row in rows:
        add_patch(ax, IDLE, 0.0, row, end, LANE)
    for task in done:
        look = looks[task.step]
        patch = add_patch(ax, look, task.start, task.worker, task.end - task.start, LANE)
        patch.set_gid(f'{task.step} {task.item}')
        ax.add_artist(Inside(patch, str(task.item), look, digits))
        busy[task.worker] += task.end - task.start
    for move in moves:
        patch = add_patch(ax, MOVING, move.start, move.worker + 0.5, move.end - move.start, THIN)
        patch.set_gid(f'moving {move.item}')
    for row in rows:
        row_end(ax, end, row, f'{busy[row] / (end or 1.0):.0%} busy')
    label_rows(ax, [f'{worker} {row}' for row in rows])
    time_axis(ax, span or end or 1.0, unit)
    named, factor = (unit, 1.0) if unit else time_unit(end)
    head(ax, title, [*looks.values(), *[MOVING] * bool(moves), IDLE], f'{end * factor:.4g} {named}')
    say(ax, f"{end * factor:.4g} {named}; busy {', '.join(f'{each / (end or 1.0):.0%}' for each in busy)}")
    return ax.figure


def _looks_of(steps: Iterable[str]) -> dict[str, Look]:
    """Of every step. Raises ValueError if there are too many."""
    steps = list(steps)
    if len(steps) > len(LOOKS):
        raise ValueError(f'{len(steps)} steps in one picture cannot be told apart; draw at most {len(LOOKS)}')
    return {step: Look(step, *look) for step, look in zip(steps, LOOKS)}
