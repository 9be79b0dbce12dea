"""`./workshop.py draw --measure`: a schedule is run on virtual devices, and the simulator judged.

A few steps are run, and the two shortest are kept, which other programs disturbed least: from the
costs of operations in the earlier one the simulator predicts the later one.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn

from fewgpu import plot
from fewgpu.device import get_devices
from fewgpu.pipeline import Pipeline
from fewgpu.plot.looks import GREY, LOOKS, size
from fewgpu.schedule import Schedule, with_updates
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import WAITS, Span, Timeline
from fewgpu.workshop.draw import save, say, title
from fewgpu.workshop.machine import cores

WIDTH, LAYERS, ROWS = 1024, 4, 64   # of a layer; in a device's stages; in a micro-batch
WARM_UP, STEPS = 2, 6


def run(plan: Schedule, recompute: str) -> tuple[Timeline, Timeline, str]:
    """The predicted and the measured timeline of one step of equal layers, and what was run."""
    devices, held = len(plan.rows), plan.stages // len(plan.rows)
    pace = None if devices <= cores() else 0.8 * cores() / devices
    places = get_devices(devices, kind='cpu', pace=pace)
    for place in places:
        place.meter()
    pairs = max(LAYERS // held, 1)
    model = nn.Sequential(*(layer for _ in range(plan.stages * pairs)
                            for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    pipe = Pipeline(model, [2 * pairs] * plan.stages, schedule=plan.name, chunks=plan.micro_batches,
                    devices=places, loss_fn=nn.functional.mse_loss, checkpoint=recompute,
                    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    x = torch.randn(ROWS * plan.micro_batches, WIDTH)
    steps = []
    for _ in range(WARM_UP + STEPS):
        pipe.step(x, x)
        steps.append(_without_waits(pipe.trace))
    quiet = sorted(range(WARM_UP, len(steps)), key=lambda step: steps[step].makespan)[:2]
    before, measured = (steps[step] for step in sorted(quiet))
    parameters = pairs * 4 * (WIDTH + 1) * WIDTH   # bytes a stage; its gradients are as many
    predicted = _predict(plan, before, parameters)
    how = '' if pace is None else f', so each computes at {pace:.0%} of the speed of a core'
    return predicted, measured, (
        f'{plan.stages} stages of {pairs} linear layers of {WIDTH} x {WIDTH}, micro-batches of '
        f'{ROWS} rows; {devices} virtual devices on {cores()} cores{how}.')


def _without_waits(timeline: Timeline) -> Timeline:
    return Timeline(tuple(tuple(span for span in row if span.op.kind not in WAITS)
                          for row in timeline.rows), timeline.names)


def _predict(plan: Schedule, before: Timeline, parameters: int) -> Timeline:
    seconds = Costs.measured(before)
    grown = [_growth(before, stage) for stage in range(plan.stages)]
    costs = Costs(**{kind: getattr(seconds, kind) for kind in 'FBIWRU'}, weights=parameters,
                  stash=[one['stash'] for one in grown], input=[one['input'] for one in grown],
                  for_W=[one['for_W'] for one in grown])
    timeline = simulate(with_updates(plan), costs)
    gradients = [parameters * len({op.stage for op in row}) for row in plan.rows]
    return Timeline(tuple(tuple(span._replace(live=span.live + more) for span in row)
                          for row, more in zip(timeline.rows, gradients)), before.names)


def _growth(timeline: Timeline, stage: int) -> dict[str, float]:
    """What a micro-batch keeps on a device, in bytes: by how much the live bytes grew, median."""
    grown: dict[str, list[int]] = {kind: [] for kind in 'FRI'}
    for row in timeline.rows:
        for before, span in zip(row, row[1:]):
            if span.op.stage == stage and span.op.kind in grown:
                grown[span.op.kind].append(span.live - before.live)
    forward, again, half = (median(grown[kind]) if grown[kind] else 0 for kind in 'FRI')
    stash = max(forward + again, 0)
    return {'stash': stash, 'input': max(forward, 0), 'for_W': max(stash + half, 0)}


def compare_with_run(console: Console, plan: Schedule, recompute: str, path: Path) -> None:
    """Run it, and show and write what was predicted beside what was measured; `path` without the
    end of a file's name."""
    console.print('Running a few steps ...', style='dim')
    predicted, measured, what = run(plan, recompute)
    console.print(title(plan, recompute), style='bold')
    console.print(what, soft_wrap=not console.is_terminal)
    for table in (_operations(predicted, measured), _devices(predicted, measured)):
        console.print()
        console.print(table)
    console.print()
    path = path.with_name(f'{path.name}-measured')
    figure = plot.timelines({'Predicted, with the durations of another step': predicted,
                             'Measured': measured})
    figure.suptitle(f'{title(plan, recompute)}, on virtual devices', x=0.008, ha='left', fontsize=10,
                    color=GREY)
    save(console, 'Picture', figure, path)
    measured.to_html(f'{path}.html', title=f'{title(plan, recompute)}, measured')
    say(console, 'Page', f'{path}.html')
    with open(f'{path}.csv', 'w', newline='', encoding='utf-8') as file:
        csv.writer(file).writerows(_all_operations(predicted, measured))
    say(console, 'Operations', f'{path}.csv')


def _operations(predicted: Timeline, measured: Timeline) -> Table:
    """A row a kind and stage: how long it takes."""
    table = _table('Operations, median ms', 'operation', 'stage', 'runs', 'predicted', 'measured',
                   'off by')
    there, here = _by_kind(predicted), _by_kind(measured)
    for kind in LOOKS:
        stages = sorted(stage for other, stage in here if other == kind)
        for stage in stages:
            spans = there[kind, stage], here[kind, stage]
            times = [median(span.seconds for span in one) for one in spans]
            table.add_row(LOOKS[kind].label if stage == stages[0] else '', str(stage),
                          str(len(spans[1])), *(f'{1e3 * time:.2f}' for time in times), _off(*times),
                          end_section=stage == stages[-1])
    return table


def _by_kind(timeline: Timeline) -> dict[tuple[str, int], list[Span]]:
    found: dict[tuple[str, int], list[Span]] = {}
    for row in timeline.rows:
        for span in row:
            found.setdefault((span.op.kind, span.op.stage), []).append(span)
    return found


def _devices(predicted: Timeline, measured: Timeline) -> Table:
    """A row a device, and the step."""
    table = _table('Devices', 'device', 'what', 'predicted', 'measured', 'off by')
    both = predicted, measured
    for device, name in enumerate(measured.names):
        ends = [one.rows[device][-1].end for one in both]
        table.add_row(name, 'done at, ms', *(f'{1e3 * end:.0f}' for end in ends), _off(*ends))
        table.add_row('', 'busy', *(f'{one.busy_share[device]:.0%}' for one in both), '')
        peaks = [one.peak(device) for one in both]
        if all(peaks):
            table.add_row('', 'peak', *map(size, peaks), _off(*peaks))
        table.add_section()
    spans = [one.makespan for one in both]
    table.add_row('step', 'makespan, ms', *(f'{1e3 * span:.0f}' for span in spans), _off(*spans))
    table.add_row('', 'bubble', *(f'{one.bubble:.1%}' for one in both), '')
    return table


def _off(predicted: float, measured: float) -> str:
    return f'{measured / predicted - 1:+.0%}' if predicted else '-'


def _all_operations(predicted: Timeline, measured: Timeline) -> Iterator[list[Any]]:
    yield ['device', 'op', 'stage', 'micro-batch', 'predicted start', 'predicted end',
           'measured start', 'measured end', 'predicted live bytes', 'measured live bytes']
    for name, *rows in zip(measured.names, predicted.rows, measured.rows):
        for there, here in zip(*rows, strict=True):
            yield [name, here.op.kind, here.op.stage, here.op.micro_batch, there.start, there.end,
                   here.start, here.end, there.live, here.live]


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, title_justify='left', title_style='bold', header_style='',
                  box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for header in headers:
        words = header in ('operation', 'device', 'what')
        table.add_column(header, justify='left' if words else 'right')
    return table
