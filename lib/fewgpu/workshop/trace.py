"""`./workshop.py trace FOLDER`: what the ranks of a run did in a step, on one clock, and what to change first."""

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer
from rich.console import Console

from fewgpu.causes import Causes
from fewgpu.critical_path import Link, critical_path
from fewgpu.plot.looks import LOOKS, Look, time_unit
from fewgpu.trace import EXCHANGE, WAITS
from fewgpu.trace_advice import advise
from fewgpu.trace_chrome import to_chrome
from fewgpu.trace_figures import figures
from fewgpu.trace_files import AVERAGING, TraceError
from fewgpu.trace_merge import Merged, load
from fewgpu.workshop.overview import overview
from fewgpu.workshop.writable import make_writable, written

MOST_IN_PICTURE = 12_000       # operations: a picture takes a millisecond for each
SUFFIXES = ('.svg', '.png', '.pdf')
MOST_TURNS, MOST_ADVICE = 9, 5
# Only traces of data parallelism have it.
LOOKS.setdefault(EXCHANGE, Look('all-reduce', '#cfe3c3', '#5d8a45', '\\\\\\\\'))


def trace(
    files: Annotated[list[Path], typer.Argument(
        metavar='FILE...|FOLDER', help='What save_trace wrote: the folder, or the files of all ranks.')],
    html: Annotated[Path | None, typer.Option(help='Write a page to zoom, hover and step through.')] = None,
    chrome: Annotated[Path | None, typer.Option(help='Write trace events, for https://ui.perfetto.dev.')] = None,
    picture: Annotated[Path | None, typer.Option(help='Write a picture (.svg, .png, .pdf).')] = None,
) -> None:
    """Merge the traces that the ranks of a run saved, and say what to change first."""
    for option, path in (('--html', html), ('--chrome', chrome), ('--picture', picture)):
        if path is not None:
            make_writable(option, [path])
    if picture is not None and picture.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f'--picture {picture} tells no format: let it end in {", ".join(SUFFIXES)}')
    try:
        merged = load(files)
        causes = Causes(merged)
    except TraceError as error:
        raise typer.BadParameter(str(error)) from None
    count = sum(map(len, merged.timeline.rows))
    if picture is not None and count > MOST_IN_PICTURE:
        raise typer.BadParameter(f'a picture of {count} operations would be grey (at most {MOST_IN_PICTURE}): take '
                                 f'--html, in which one can zoom')
    path, console = critical_path(causes), Console(highlight=False)
    show(console, causes, path)
    _write(console, causes, path, html, chrome, picture)


def title(merged: Merged) -> str:
    """What ran."""
    name, stages, count = (merged.schedule[part] for part in ('name', 'stages', 'micro_batches'))
    ranks, rows = len(merged.ranks), len(merged.timeline.rows)
    on = f'{ranks} ranks' if ranks > 1 else f'{rows} device{"s" * (rows > 1)}'
    if name == AVERAGING:
        return f'{name}: {on}'
    pipelines = len({*zip(merged.pipelines, merged.parts)})
    several = f' in {pipelines} pipelines' if pipelines > 1 else ''
    return f'{name}: {on}{several}, {stages} stages, {count} micro-batches'


def show(console: Console, causes: Causes, path: Sequence[Link]) -> None:
    """The timeline, the figures, the critical path and the advice."""
    merged = causes.merged
    console.print(title(merged), style='bold')
    console.print(overview(
        merged.timeline, console.width, colour=console.color_system is not None and not console.no_color,
        unicode=console.encoding.startswith('utf')), no_wrap=True, overflow='crop')
    for lines in (_figures(causes), _path(merged, path), _advice(causes)):
        console.print()
        for line in lines:
            if console.is_terminal:
                indent = ' ' * 9 if line.startswith(' ') else ''
                line = '\n'.join(wrap(line, console.width, subsequent_indent=indent, replace_whitespace=False))
            console.print(line, markup=False, soft_wrap=True)


def _figures(causes: Causes) -> Iterator[str]:
    merged, one = causes.merged, figures(causes)
    yield (f'Step: {_time(one.makespan)}. Bubble, the share of the devices\' time in which they do not compute: '
           f'{one.bubble:.1%}.')
    parts = {'waiting for the work of others': one.others, 'waiting for messages under way': one.flight,
             'packing and unpacking messages': one.handling}
    said = ', '.join(f'{one.share(seconds):.1%} {what}' for what, seconds in parts.items())
    idle = max(one.bubble - sum(map(one.share, parts.values())), 0.0)
    yield f'Of their time: {one.share(one.busy):.1%} computing, {said}, {idle:.1%} idle.'
    if len(one.devices) > 1:
        yield (f'Busiest: {merged.timeline.names[one.busiest]}, which computed {one.imbalance:.2f}x as long as the '
               f'mean device.')
    yield from _clocks(merged)


def _clocks(merged: Merged) -> Iterator[str]:
    clocks = merged.clocks
    if len(merged.ranks) < 2:
        return
    known = [offset for offset, unsure in zip(clocks.offsets, clocks.uncertainties) if unsure < inf]
    if len(known) > 1:
        yield (f'Clocks: up to {_time(max(known) - min(known))} apart, known to within {_time(clocks.uncertainty)} '
               f'from the messages that ranks exchanged.')
    if clocks.drift:
        yield (f'The clocks contradict each other by {_time(clocks.drift)}: they run at different speeds, or were set '
               f'meanwhile. Save the trace of a shorter step.')
    for place in clocks.unknown:
        yield (f'The clock of rank {merged.ranks[place]} is not known: no messages went both ways between it and rank '
               f'{merged.ranks[0]}, not by way of others either. It is placed where it may be wrong.')


def _path(merged: Merged, path: Sequence[Link]) -> Iterator[str]:
    names, whole = merged.timeline.names, merged.timeline.makespan or 1.0
    shares = dict.fromkeys(('computing', 'messages and exchanges', 'packing and unpacking', 'lost between operations'),
                           0.0)
    for link in path:
        shares[_what(link)] += link.seconds
    said = ', '.join(f'{share / whole:.0%} {what}' for what, share in shares.items() if share / whole >= 0.005)
    yield f'Critical path, the chain that decides how long the step takes: {said}.'
    turns = list(_turns(path))
    shown = turns if len(turns) <= MOST_TURNS else [*turns[:4], None, *turns[-4:]]
    room, (unit, factor) = max(map(len, names)), time_unit(whole)
    digits = 1 if whole * factor >= 10 else 3
    for turn in shown:
        if turn is None:
            left = turns[4:-4]
            devices = {names[row] for row, _ in left}
            yield f'{"...":>9} {" " * len(unit)}  {len(left)} more turns on {len(devices)} devices'
            continue
        row, links = turn
        ops = [str(link.op) for link in links if link.kind == 'op' and link.op.kind not in WAITS]
        some = ' '.join(ops if len(ops) <= 8 else [*ops[:4], '...', *ops[-3:]]) + (
            f' ({len(ops)} operations)' if len(ops) > 8 else '')
        begun = ''
        if links[0].kind in ('message', 'meeting'):
            what = 'message from' if links[0].kind == 'message' else 'exchange with'
            begun = f'{what} {names[links[0].sender]} ({_time(links[0].seconds)})' + (', then ' if ops else '')
        yield f'{links[0].start * factor:>9.{digits}f} {unit}  {names[row]:<{room}}  {begun}{some}'.rstrip()


def _turns(path: Sequence[Link]) -> Iterator[tuple[int, list[Link]]]:
    """Links one after the other on the same device; a message, or exchange, begins the turn of its receiver."""
    links: list[Link] = []
    for link in path:
        if link.kind == 'lost' and not links or link.kind == 'op' and link.op.kind in WAITS and (
                not links or link.row != links[-1].row):
            continue   # so short that a turn of its own would say nothing
        if links and (link.row != links[-1].row or link.kind in ('message', 'meeting')):
            yield links[-1].row, links
            links = []
        links.append(link)
    if links:
        yield links[-1].row, links


def _what(link: Link) -> str:
    if link.kind == 'lost':
        return 'lost between operations'
    if link.kind != 'op' or link.op.kind == EXCHANGE:
        return 'messages and exchanges'
    return 'packing and unpacking' if link.op.kind in WAITS else 'computing'


def _advice(causes: Causes) -> Iterator[str]:
    found = advise(causes)
    if not found:
        yield 'What to change first: nothing that this trace shows would gain half a percent.'
        return
    yield 'What to change first (the same step timed again, with one thing changed and all else as it was):'
    for one in found[:MOST_ADVICE]:
        yield f'  {one.factor:.2f}x  with {one.change}:'
        yield f'         {one.how}'


def _time(seconds: float) -> str:
    """Three digits, as many as are worth reading."""
    unit, factor = time_unit(seconds * 1.0005)   # 999.6 µs is 1 ms
    value = seconds * factor
    return f'{value:.3g} {unit}' if value < 999.5 else f'{value:.0f} {unit}'


def _write(console: Console, causes: Causes, path: Sequence[Link], html: Path | None, chrome: Path | None,
           picture: Path | None) -> None:
    merged, written_files, heading = causes.merged, [], title(causes.merged)
    if html is not None:
        with written(html, '--html') as file:
            file.write(merged.timeline.to_html(title=heading).encode())
        written_files.append(('Page', html))
    if chrome is not None:
        with written(chrome, '--chrome') as file:
            file.write(to_chrome(merged.timeline, pipelines=[*zip(merged.pipelines, merged.parts)]).encode())
        written_files.append(('For Perfetto', chrome))
    if picture is not None:
        from fewgpu.workshop.trace_picture import picture as draw   # matplotlib takes its time
        with written(picture, '--picture') as file:
            one = figures(causes)
            draw(merged.timeline, path, heading, f'{_time(one.makespan)}, bubble {one.bubble:.1%}').savefig(
                file, format=picture.suffix[1:].lower(), dpi=150)
        written_files.append(('Picture', picture))
    if written_files:
        console.print()
    for what, where in written_files:
        console.print(f"{what + ':':<14}{where}", soft_wrap=True, markup=False)
