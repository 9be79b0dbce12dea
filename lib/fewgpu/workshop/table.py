"""The table of `compare`: speed and learning, then the memory of every device. Fits 80 columns."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fewgpu.meter import Memory
from fewgpu.simulate import allowed_speed_up
from fewgpu.workshop.contestants import Result

NONE = '-'


def speed(result: Result) -> float | None:
    """Samples a second, None if it failed."""
    return result.report['samples_per_second'] if result.report else None


def speed_up(result: Result, plain: Result | None) -> float | None:
    """Over the plain model on one device; None if either failed or did not take part."""
    if plain is None or not speed(result) or not speed(plain):
        return None
    return speed(result) / speed(plain)


def memory(result: Result) -> list[Memory]:
    """Of every device; empty if it was not measured."""
    rows = result.report['memory'] or [] if result.report else []
    return [Memory(row['name'], row['allocated'], row['peak'], row['parameters'],
                   row.get('reserved')) for row in rows]


def tables(results: Sequence[Result], plain: Result | None) -> RenderableType:
    """Both tables, and why those that failed did."""
    failures = [Text(f'{result.name}: {result.failure}') for result in results
                if result.report is None]
    return Group(speed_table(results, plain), *failures, Text(), memory_table(results))


def speed_table(results: Iterable[Result], plain: Result | None) -> Table:
    """A row a contestant: its speed, its settings, and what it learned."""
    table = _table('Speed, and what was learned from the same samples')
    for header in ('samples\na second', 'speed-\nup', 'bubble\nallows', 'busy\nshare, %', 'batch',
                   'chunks', 'balance', 'loss', 'test\nacc.'):
        table.add_column(header, justify='right', overflow='fold')
    for result in results:
        if result.report is None:
            table.add_row(result.name, Text('failed', style='bold'))
            continue
        table.add_row(result.name, *_figures(result.report, speed_up(result, plain)))
    return table


def _figures(report: dict[str, Any], faster: float | None) -> Iterable[str]:
    stages, piped = len(report['balance']), report['engine'] != 'plain'
    yield _digits(report['samples_per_second'])
    yield NONE if faster is None else f'{faster:.2f}x'
    yield f"{allowed_speed_up(report['chunks'], stages):.2f}x" if piped else NONE
    yield ' '.join(f'{100 * share:.0f}' for share in report['busy_share'] or ()) or NONE
    yield str(report['batch'])
    yield str(report['chunks']) if piped else NONE
    yield ','.join(map(str, report['balance'])) if piped else NONE
    yield f"{report['loss']:.3f}"
    yield f"{report['accuracy']:.1%}"


def _digits(value: float) -> str:
    return f'{value:.2f}' if value < 100 else f'{value:.1f}'


def memory_table(results: Iterable[Result]) -> Table:
    """A row a device, and their sum where there are several."""
    results = [result for result in results if result.report]
    table = _table('Memory of every device, GB')
    table.add_column('device')
    reserved = any(device.reserved is not None for result in results for device in memory(result))
    for header in ('allocated', *(['reserved'] * reserved), 'peak', 'of it\nparameters',
                   'of it activa-\ntions, gradients'):
        table.add_column(header, justify='right')
    for result in results:
        devices = memory(result)
        if len(devices) > 1:
            devices.append(_together(devices))
        for position, device in enumerate(devices):
            figures = [device.allocated, *([device.reserved] * reserved), device.peak,
                       device.parameters, device.peak - device.parameters]
            table.add_row('' if position else result.name, device.name, *map(_gigabytes, figures),
                          end_section=device is devices[-1])
        if not devices:
            table.add_row(result.name, 'not measured', end_section=True)
    return table


def notes(results: Iterable[Result]) -> list[str]:
    """How the figures were measured, as the reports tell."""
    reports = [result.report for result in results if result.report]
    said = ['The bubble allows m n / (m + n - 1), for m chunks on n devices, if stages cost the same '
            'and nothing is recomputed.']
    for kind, about in (('busy', 'Busy share'), ('memory', 'Memory')):
        for how in dict.fromkeys(report[f'{kind}_how'] for report in reports):
            names = {report['engine'] for report in reports if report[f'{kind}_how'] == how}
            whose = '' if names >= {report['engine'] for report in reports} else (
                f" ({', '.join(sorted(names))})")
            said.append(f"{about}{whose}: {how.rstrip('.')}.")
    return said


def _together(devices: Sequence[Memory]) -> Memory:
    reserved = [device.reserved for device in devices if device.reserved is not None]
    return Memory('together', *(sum(getattr(device, what) for device in devices)
                                for what in ('allocated', 'peak', 'parameters')),
                  sum(reserved) if reserved else None)


def _gigabytes(size: int | None) -> str:
    return NONE if size is None else f'{size / 1e9:.3f}'


def _table(title: str) -> Table:
    table = Table(title=title, title_justify='left', title_style='bold', header_style='',
                  box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column('', no_wrap=True)
    return table
