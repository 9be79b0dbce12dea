"""`./workshop.py draw 1f1b`: a schedule in virtual time: in the terminal, as picture, as page."""

from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure
from rich.console import Console

from fewgpu import plot
from fewgpu.schedule import CHECKPOINTS, SCHEDULES, Schedule, with_recompute, with_updates
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import Timeline
from fewgpu.workshop.blocks import blocks
from fewgpu.workshop.facts import facts
from fewgpu.workshop.writable import make_writable

UNIT = 'units'
MOST_MEASURED = 16                        # devices
FILES = ('.svg', '.png', '.html', '.json')
MEASURED_FILES = ('-measured.svg', '-measured.png', '-measured.html', '-measured.csv')
MOST, MOST_IN_PICTURE = 200_000, 12_000   # operations: a picture takes a millisecond for each


def draw(
    schedule: Annotated[str, typer.Argument(help=f"One of {', '.join(SCHEDULES)}.")] = '1f1b',
    stages: Annotated[int, typer.Option(
        '--stages', '--devices', help='Stages, one a device (interleaved: devices).')] = 4,
    chunks: Annotated[int, typer.Option(help='Micro-batches a mini-batch.')] = 8,
    v: Annotated[int, typer.Option(help='Stages a device, if interleaved.')] = 2,
    forward: Annotated[float, typer.Option(
        min=0, help='Units of time of a forward, through all stages of a device.')] = 1.0,
    backward: Annotated[float, typer.Option(
        min=0, help='Of a backward; zero bubble halves it into I and W.')] = 2.0,
    update: Annotated[float, typer.Option(min=0, help='Of an update.')] = 0.0,
    latency: Annotated[float, typer.Option(min=0, help='Of a message between devices.')] = 0.0,
    recompute: Annotated[str, typer.Option(help=f"{', '.join(CHECKPOINTS)}.")] = 'never',
    measure: Annotated[bool, typer.Option(
        '--measure', help='Run it on virtual devices too, and compare.')] = False,
    out: Annotated[Path, typer.Option(help='The folder for picture and page.')] = Path('results'),
) -> None:
    """Show a pipeline schedule: in virtual time, where forwards and backwards take what you say."""
    times = forward, backward, update, latency
    plan = _asked_for(schedule, stages, chunks, v, recompute, times, measure)
    path, console = out / stem(plan, recompute), Console(highlight=False)
    make_writable('--out', [Path(f'{path}{end}') for end in (MEASURED_FILES if measure else FILES)], [out])
    if measure:
        from fewgpu.workshop.predicted import compare_with_run
        return compare_with_run(console, plan, recompute, path)
    _in_virtual_time(console, plan, recompute, times, path)


Times = tuple[float, float, float, float]   # of a forward, a backward, an update, a message


def _asked_for(schedule: str, stages: int, chunks: int, v: int, recompute: str, times: Times,
               measure: bool) -> Schedule:
    """The schedule. Raises BadParameter, a sentence, for flags that do not go together, or that none can have."""
    forward, backward, update, latency = times
    if not all(0 < time < inf for time in (forward, backward)) or max(update, latency) == inf:
        raise typer.BadParameter('a forward and a backward take more than 0 units, and nothing '
                                 'takes for ever')
    try:
        plan = make(schedule, stages, chunks, v=v, recompute=recompute, update=update)
    except ValueError as error:
        raise typer.BadParameter(str(error).partition('\n')[0]) from None
    if measure and times != (1.0, 2.0, 0.0, 0.0):
        raise typer.BadParameter('--measure takes the times that it measures: leave --forward, '
                                 '--backward, --update and --latency out')
    if measure and len(plan.rows) > MOST_MEASURED:
        raise typer.BadParameter(f'--measure runs at most {MOST_MEASURED} devices, not '
                                 f'{len(plan.rows)}')
    return plan


def _in_virtual_time(console: Console, plan: Schedule, recompute: str, times: Times, path: Path) -> None:
    """Show it, what may be learnt from it, and write its files; `path` without the end of their names."""
    forward, backward, update, latency = times
    held = plan.stages // len(plan.rows)   # stages share the work of their device
    costs = Costs(F=forward / held, B=backward / held, I=backward / held / 2,
                  W=backward / held / 2, U=update / held, latency=latency,
                  stash=1, input=1, for_W=1)   # so that what lives is counted in stashes
    timeline = simulate(plan, costs)
    show(console, plan, timeline)
    console.print()
    plain = recompute == 'never' and not latency + update
    for sentence in facts(plan, timeline, costs, plain=plain):
        console.print(sentence, soft_wrap=not console.is_terminal)
    try:
        write(console, timeline, path, title(plan, recompute), unit=UNIT, counts='stashes')
    except OSError as error:
        raise typer.BadParameter(f'cannot write to --out {path.parent} ({error.strerror})') from None


def make(name: str, stages: int, chunks: int, *, v: int = 2, recompute: str = 'never',
         update: float = 0.0) -> Schedule:
    """The schedule of that name. Raises ValueError, with the choices, if there is none, and for
    sizes that it cannot have."""
    if name not in SCHEDULES:
        raise ValueError(f"there is no schedule {name}; choose from {', '.join(SCHEDULES)}")
    if recompute not in CHECKPOINTS:
        raise ValueError(f"recompute is one of {', '.join(CHECKPOINTS)}, not {recompute}")
    if min(stages, chunks, v) < 1:
        raise ValueError(f'a schedule needs at least one stage, one micro-batch and, if interleaved, '
                         f'one stage a device, not {stages}, {chunks} and {v}')
    if stages * chunks * max(v if name == 'interleaved' else 1, 1) > MOST // 2:
        raise ValueError(f'{stages} stages and {chunks} micro-batches are more than can be shown: '
                         f'take at most {MOST // 2} forwards in all')
    function = partial(SCHEDULES[name], v=v) if name == 'interleaved' else SCHEDULES[name]
    plan = with_recompute(function(stages, chunks), recompute)
    return with_updates(plan) if update else plan


def title(plan: Schedule, recompute: str = 'never') -> str:
    devices = f'{len(plan.rows)} devices, ' if plan.stages > len(plan.rows) else ''
    again = '' if recompute == 'never' else f', recompute {recompute}'
    return f'{plan.name}: {devices}{plan.stages} stages, {plan.micro_batches} micro-batches{again}'


def stem(plan: Schedule, recompute: str = 'never') -> str:
    """What its files are called."""
    sizes = [len(plan.rows), plan.micro_batches]
    if plan.stages > len(plan.rows):   # and how many stages a device holds
        sizes.append(plan.stages // len(plan.rows))
    again = '' if recompute == 'never' else f'-recompute-{recompute}'
    return f"{plan.name}-{'x'.join(map(str, sizes))}{again}"


def show(console: Console, plan: Schedule, timeline: Timeline) -> None:
    """Blocks where there is a terminal that is wide enough, else the schedule as text."""
    console.print(title(plan), style='bold')
    if console.is_terminal:
        unicode = console.encoding.startswith('utf')
        colour = console.color_system is not None and not console.no_color
        drawn = blocks(timeline, console.width, colour=colour, line='─' if unicode else '-')
        if drawn is not None:
            return console.print(drawn, no_wrap=True, overflow='crop')
        console.print('In order, not in time: this terminal is too narrow for blocks.', style='dim')
    console.print(str(plan), markup=False, no_wrap=True, soft_wrap=not console.is_terminal,
                  overflow='ellipsis' if console.is_terminal else 'ignore')


def write(console: Console, timeline: Timeline, path: Path, heading: str, **names: str) -> None:
    """Write the picture, the page and the trace, and say where they are."""
    console.print()
    if sum(map(len, timeline.rows)) <= MOST_IN_PICTURE:
        save(console, 'Picture', plot.timeline(timeline, title=heading, **names), path)
    timeline.to_html(f'{path}.html', title=heading, **names)
    say(console, 'Page', f'{path}.html')
    timeline.to_chrome(f'{path}.json')
    say(console, 'For Perfetto', f'{path}.json')


def save(console: Console, what: str, figure: Figure, path: Path) -> None:
    """Write a figure, to print and to look at."""
    for suffix in ('svg', 'png'):
        figure.savefig(f'{path}.{suffix}', dpi=150)
        say(console, what, f'{path}.{suffix}')


def say(console: Console, what: str, path: str) -> None:
    console.print(f"{what + ':':<14}{path}", soft_wrap=True)
