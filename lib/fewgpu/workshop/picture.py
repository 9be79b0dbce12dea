"""The picture of `compare`: speed, memory of every device, and one step of GPipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewgpu import plot
from fewgpu.plot.looks import GREY
from fewgpu.schedule import Op
from fewgpu.trace import Span, Timeline
from fewgpu.workshop.contestants import Result
from fewgpu.workshop.table import memory, speed, speed_up


def draw(results: Sequence[Result], plain: Result | None, path: Path, heading: str) -> None:
    """Draw what the run measured into `path` (its suffix tells the format: png, svg, pdf)."""
    steps = {f'One step of {result.name}': timeline for result in results
             if result.contestant.key in ('gpipe-recompute', 'gpipe') and result.report
             and (timeline := read_timeline(result.report['timeline']))}
    steps_heights = [1.1 + 0.42 * len(timeline.rows) for timeline in steps.values()]
    speed_height = 0.8 + 0.42 * len(results)
    height = 0.8 + 0.21 * sum(max(2, len(memory(result))) for result in results)
    figure = plot.Picture(figsize=(11.0, 0.4 + height + sum(steps_heights)), layout='constrained')
    figure.suptitle(heading, x=0.008, ha='left', fontsize=10, color=GREY)
    grid = figure.add_gridspec(1 + len(steps), 2, height_ratios=[height, *steps_heights])
    # With many devices the memory is the taller one: leave room under the speeds.
    left = grid[0, 0].subgridspec(2, 1, height_ratios=[speed_height, height - speed_height + 1e-3])
    _draw_speed(figure.add_subplot(left[0]), results, plain)
    plot.memory_bars({result.name: memory(result) for result in results},
                     figure.add_subplot(grid[0, 1]), title='Peak memory of every device')
    if steps:
        plot.timelines(steps, [figure.add_subplot(grid[1 + row, :]) for row in range(len(steps))])
    figure.savefig(path, dpi=150)


def read_timeline(stored: Mapping[str, Any] | None) -> Timeline | None:
    """The timeline of a report; None if the contestant has none."""
    if not stored:
        return None
    return Timeline(tuple(tuple(Span(Op(kind, stage, micro_batch), start, end)
                                for kind, stage, micro_batch, start, end in row)
                          for row in stored['rows']), tuple(stored['names']))


def _draw_speed(ax: Any, results: Sequence[Result], plain: Result | None) -> None:
    notes = {result.name: f'{faster:.2f}x' for result in results
             if (faster := speed_up(result, plain)) and result is not plain}
    notes |= {result.name: 'failed' for result in results if not result.report}
    plot.bars({result.name: speed(result) for result in results}, ax, notes=notes,
              title='Samples a second')
