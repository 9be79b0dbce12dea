"""`./workshop.py plan --model gpt-2.2B --gpus 64`: every way to train it there, ranked by predicted speed.

Nothing is run: closed forms predict (fewgpu.planner), for 16,384 devices as for one. They are not those of
`demo depth-width`, which is PipeDream-2BW's own planner: there 45 TFLOP/s, 1 ms to start a block and 65 GB/s
inside a server; here the figures of --cluster, printed above the table.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fewgpu.planner.cluster import PRESETS, Cluster, amount, parse_rate, parse_size, preset
from fewgpu.planner.known import KNOWN, known
from fewgpu.planner.model import Model
from fewgpu.planner.search import fastest_first
from fewgpu.planner.way_memory import PRECISIONS
from fewgpu.planner.ways import Prediction, Task
from fewgpu.workshop.plan_flags import without_effect
from fewgpu.workshop.writable import make_writable, written

MOST_DEVICES = 10**6
_RATE = 'like 10GB/s (bytes) or 100Gbit/s (bits)'


def plan(
    model: Annotated[str, typer.Option(
        help=f'{", ".join(KNOWN)}; or FILE.py:FUNCTION, which returns an nn.Sequential and a sample.')] = 'gpt-2.2B',
    gpus: Annotated[int, typer.Option(help='Devices in all.')] = 8,
    cluster: Annotated[str, typer.Option(
        help=f'{", ".join(PRESETS)}: whose figures hold where none is given.')] = 'v100-16',
    per_server: Annotated[int | None, typer.Option(help='Devices a server.')] = None,
    memory: Annotated[str | None, typer.Option(help='Of a device, like 16GB.')] = None,
    bandwidth: Annotated[str | None, typer.Option(help=f"Of a server's network, {_RATE}.")] = None,
    inside: Annotated[str | None, typer.Option(help=f'Of a device within its server, {_RATE}.')] = None,
    latency: Annotated[float | None, typer.Option(help='Of a message, in microseconds.')] = None,
    tflops: Annotated[float | None, typer.Option(help='Peak TFLOP/s of a device, in that --precision.')] = None,
    efficiency: Annotated[float | None, typer.Option(help='The share of it that layers reach.')] = None,
    host_bandwidth: Annotated[str | None, typer.Option(help=f"Of a device's link to its host, {_RATE}.")] = None,
    host_memory: Annotated[str | None, typer.Option(help='Of a server, like 500GB.')] = None,
    disk_bandwidth: Annotated[str | None, typer.Option(help=f'Of disks, a device, {_RATE}.')] = None,
    batch: Annotated[int | None, typer.Option(help='Samples an update, on all devices together.')] = None,
    precision: Annotated[str, typer.Option(help='mixed or fp32; both with Adam.')] = 'mixed',
    stale: Annotated[bool, typer.Option(help='Also 2BW, whose gradients are of weights one update old.')] = True,
    as_json: Annotated[bool, typer.Option('--json', help='Print JSON, and draw nothing.')] = False,
    out: Annotated[Path, typer.Option(help='The folder for the picture.')] = Path('results'),
) -> None:
    """Rank the ways to train a model on a cluster, by predicted samples/sec."""
    given = {'devices': gpus, 'per_server': per_server, 'efficiency': efficiency,
             'latency': None if latency is None else latency / 1e6,
             'flops' if precision == 'mixed' else 'flops32': None if tflops is None else tflops * 1e12}
    try:
        given |= _read(parse_size, memory=memory, host_memory=host_memory)
        given |= _read(parse_rate, between=bandwidth, inside=inside, host_bandwidth=host_bandwidth,
                       disk_bandwidth=disk_bandwidth)
        task = make(model, cluster, batch, precision, given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _tell(task, given, cluster, stale, None if as_json else out)


def _tell(task: Task, given: dict[str, Any], cluster: str, stale: bool, out: Path | None) -> None:
    """Rank, print, and draw into `out`; JSON where that is None."""
    console = Console(highlight=False)
    if out is not None:
        make_writable('--out', [path := picture_of(task, out)], [out])
    ranked = fastest_first(task, stale=stale)
    for sentence in without_effect(task, given, cluster, ranked, stale=stale):
        Console(highlight=False, stderr=True).print(sentence, soft_wrap=True)
    if out is None:
        return print(json.dumps([as_dict(one) for one in ranked], indent=1, allow_nan=False))
    show(console, task, ranked, cluster)
    if ranked[0].fits:
        _draw(console, ranked, path)


def _read(parse: Any, **texts: str | None) -> dict[str, float | None]:
    return {name: None if text is None else parse(text) for name, text in texts.items()}


def make(model: str, cluster: str, batch: int | None, precision: str, given: dict[str, Any]) -> Task:
    """What is to be planned. Raises ValueError, in a sentence, for what there is not or cannot be."""
    if precision not in PRECISIONS:
        raise ValueError(f'--precision is mixed or fp32, not {precision}')
    if not 1 <= given['devices'] <= MOST_DEVICES:
        raise ValueError(f"--gpus is 1 to {MOST_DEVICES}, not {given['devices']}")
    place = preset(cluster, **{name: value for name, value in given.items() if value is not None})
    return Task(network := _model(model), place, network.batch if batch is None else batch, PRECISIONS[precision])


def _model(name: str) -> Model:
    if ':' not in name:
        return known(name)
    from fewgpu.planner.own import load   # which imports torch
    return load(name)


def as_dict(one: Prediction) -> dict[str, Any]:
    """A prediction as JSON has it: seconds, bytes, samples a second."""
    return {'way': one.name, 'fits': one.fits, 'samples_per_second': one.samples_per_second, 'busy': one.busy,
            'step_seconds': one.step, 'memory_bytes': one.memory_bytes, 'knobs': asdict(one.knobs),
            'micro_batches': one.knobs.chunks(one.task.batch), 'seconds': one.parts, 'bytes': one.memory,
            'host_bytes': one.host, 'why': one.why}


def show(console: Console, task: Task, ranked: list[Prediction], cluster: str = '') -> None:
    """What was assumed (of which preset), the table, and the reasons."""
    for sentence in assumed(task, cluster):
        console.print(sentence, soft_wrap=not console.is_terminal)
    console.print()
    console.print(_table(ranked))
    if task.cluster.devices == 1:
        console.print('On one device data parallelism, pipelines, tensor ranks and ZeRO are plain training.',
                      soft_wrap=not console.is_terminal)
    console.print()
    reasons = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    reasons.add_column(no_wrap=True)
    for one in ranked:
        reasons.add_row(f'{one.name}', one.why)
    console.print('Where the time goes, or what does not fit', style='bold')
    console.print(reasons)
    console.print()
    if ranked[0].fits:
        console.print(f'Fastest: {ranked[0].name}. {_advice(ranked)}', soft_wrap=not console.is_terminal)
    else:
        console.print('No way fits: take more devices, more memory or a smaller model.', style='bold')
    if any(one.name.startswith('2BW') for one in ranked[:1]):
        console.print('(Its gradients are of weights one update old; --no-stale leaves such ways out.)', style='dim',
                      soft_wrap=not console.is_terminal)


def assumed(task: Task, cluster: str = '') -> list[str]:
    """The header: what the predictions rest on; `cluster` names the preset, if it is one."""
    model, place, precision = task.model, task.cluster, task.precision
    servers = f'{place.servers} server{"s" * (place.servers > 1)} of up to {place.per_server}'
    peak = place.flops if precision.name == 'mixed' else place.flops32
    return [
        f'{model.name} ({model.about}): {_count(model.parameters)} parameters, {_count(model.flops)} FLOP a forward '
        f'of a sample; {task.batch} samples an update, {precision.name} precision with Adam '
        f'({precision.state} bytes a parameter).',
        f'{cluster and f"{named(cluster, place)}: "}{place.devices} device{"s" * (place.devices > 1)} of '
        f'{amount(place.memory)} in {servers}; {peak / 1e12:g} TFLOP/s each, of which {place.efficiency:.0%} are '
        f'reached; {amount(place.inside)}/s inside servers, {amount(place.between)}/s between them, '
        f'{1e6 * place.latency:g} µs a message; {amount(place.host_bandwidth)}/s to the host.',
        f'Starting kernels takes {1e6 * place.overhead:g} µs a layer and forward, twice that a backward, and counts as '
        'computing. All-reduces and gathers hide behind the pass that they belong to as far as they can. Not counted: '
        'buffers, fragments of memory, loading of data.']


def named(cluster: str, place: Cluster) -> str:
    """The preset, and whether it was changed."""
    return f'Cluster {cluster}{"" if preset(cluster, devices=place.devices) == place else ", changed"}'


def _count(number: float) -> str:
    for name, size in (('trillion', 1e12), ('billion', 1e9), ('million', 1e6)):
        if number >= size:
            return f'{number / size:.3g} {name}' if number < 1000 * size else f'{number / size:,.0f} {name}'
    return f'{number:,.0f}'


def _table(ranked: list[Prediction]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style='')
    table.add_column('way', no_wrap=True)
    for header in ('samples/s', 'busy', 'a device'):
        table.add_column(header, justify='right', no_wrap=True)
    table.add_column('with')
    for one in ranked:
        figures = [speed(one), f'{one.busy:.0%}'] if one.fits else ['does not fit', '']
        table.add_row(one.name, *figures, amount(one.memory_bytes), described(one), style='' if one.fits else 'dim')
    return table


def speed(one: Prediction) -> str:
    """Samples a second: four digits, or all of them."""
    rate = one.samples_per_second
    return f'{rate:,.0f}' if rate >= 1000 else f'{rate:.4g}'


def described(one: Prediction) -> str:
    """Its knobs, in words."""
    knobs, chunks = one.knobs, one.knobs.chunks(one.task.batch)
    counts = ((knobs.tensor, 'tensor ranks'), (knobs.stages, 'stages'), (knobs.replicas, 'replicas'))
    size = ' x '.join(f'{count} {what}' for count, what in counts if count > 1) or '1 device'
    each = f'{chunks} micro-batch{"es" * (chunks > 1)} of {knobs.rows}'
    again = '' if knobs.recompute == 'never' else f', recompute by {knobs.recompute}'
    return f'{size}; {each}{again}'


def _advice(ranked: list[Prediction]) -> str:
    """How the kit does the fastest, or the fastest that it can."""
    best = next((one for one in ranked if one.fits and can_run(one)), None)
    if best is ranked[0]:
        return to_run(best)
    other = f'; the fastest of what it runs: {best.name}. {to_run(best)}' if best else ', and nothing else fits.'
    return f'The kit has no replicas under 2BW{other}'


def can_run(one: Prediction) -> bool:
    """Has the kit what this prediction is about?"""
    return one.knobs.schedule != '2bw' or one.knobs.devices == one.knobs.stages


def to_run(one: Prediction) -> str:
    """What in the kit does it; for a prediction that `can_run`."""
    knobs, chunks = one.knobs, one.knobs.chunks(one.task.batch)
    if knobs.offload:
        return 'In the kit: fewgpu.Offloaded(model, ...); ./workshop.py demo zero-infinity shows it.'
    if knobs.zero:
        return f'In the kit: fewgpu.ZeRO(model, stage={knobs.zero}, ...), on ranks; ./workshop.py demo zero shows it.'
    if knobs.devices == 1:
        return 'In the kit: a plain script, as exercises/mnist_pytorch.py.'
    if knobs.stages == knobs.tensor == 1:
        return 'In the kit: fewgpu.DataParallel(model), on ranks.'
    if knobs.schedule == 'one at a time':
        return 'In the kit: fewgpu.ModelParallel(model, balance).'
    again, kept = ('', '') if knobs.recompute == 'never' else (' --recompute always', "checkpoint='always', ")
    options = f"schedule='{knobs.schedule}', chunks={chunks}, {kept}..."
    code = f'fewgpu.Pipeline(model, balance, {options})'
    if knobs.devices > knobs.stages:
        factors = 'x'.join(map(str, (knobs.replicas, knobs.stages, knobs.tensor)))
        code = f"fewgpu.hybrid.parallelize(model, '{factors}', {options}), on ranks"
    drawn = '' if knobs.stages == 1 else (f'See its schedule: ./workshop.py draw {knobs.schedule} --stages '
                                            f'{knobs.stages} --chunks {chunks}{again}. ')
    return f'{drawn}In the kit: {code}.'


def picture_of(task: Task, out: Path) -> Path:
    """Where the picture of a task's plan goes."""
    name = ''.join(letter if letter.isalnum() or letter in '.-' else '-' for letter in task.model.name)
    return out / f'plan-{name}-{task.cluster.devices}.png'


def _draw(console: Console, ranked: list[Prediction], path: Path) -> None:
    from fewgpu.workshop.plan_picture import picture   # only who draws waits for matplotlib
    with written(path, '--out') as file:
        picture(ranked).savefig(file, format='png', dpi=150)
    console.print(f'Picture: {path}', soft_wrap=True)
