"""`./workshop.py doctor`: is this machine ready, and what is to be done if it is not?"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fewgpu.workshop.runner import examine_kit as kit
from fewgpu.workshop.runner import examine_machine as machine
from fewgpu.workshop.runner import examine_reach as reach
from fewgpu.workshop.runner.choose import console
from fewgpu.workshop.runner.finding import BAD, OK, WARN, Finding

Examination = Callable[[], Iterable[Finding]]

WITHOUT_TORCH: tuple[Examination, ...] = (
    kit.clone, machine.python, kit.packages, kit.exercises, machine.disk, machine.memory, machine.cores, kit.terminal,
    reach.host_name, reach.ports, reach.slurm)
WITH_TORCH: tuple[Examination, ...] = (machine.gpus, kit.data, machine.efficiency, reach.ranks)
MARKS = {OK: ('ok', 'green'), WARN: ('warn', 'yellow'), BAD: ('BAD', 'bold red')}


def doctor(
    to_json: Annotated[Path | None, typer.Option(
        '--json', metavar='FILE', help='Also write it as JSON; - for the terminal instead.')] = None,
) -> None:
    """Is this machine ready? Looks at everything that the kit needs, and says what to do where something is amiss.

    Takes a few seconds. Ends with exit code 1 if something will fail (BAD); a `warn` works, but could be better.
    """
    silent = to_json == Path('-')
    out = console(quiet=silent)
    started = time.monotonic()
    findings = []
    with out.status('looking') if out.is_terminal else contextlib.nullcontext():
        for finding in examine():
            findings.append(finding)
            out.print(line(finding))
    out.print(f'\n{conclusion(findings)} ({time.monotonic() - started:.0f} s)', soft_wrap=True)
    if to_json:
        text = json.dumps([asdict(finding) for finding in findings], indent=1)
        try:
            print(text) if silent else to_json.write_text(text + '\n', encoding='utf-8')
        except OSError as error:
            raise typer.BadParameter(f'cannot write to --json {to_json} ({error.strerror})') from error
    if worst(findings) == BAD:
        raise typer.Exit(1)


def examine(without_torch: Iterable[Examination] = WITHOUT_TORCH, with_torch: Iterable[Examination] = WITH_TORCH,
            torch_itself: Examination = machine.torch_itself) -> Iterator[Finding]:
    """All findings, as they come. Where torch does not work, what needs it is not looked at."""
    for examination in without_torch:
        yield from _findings(examination)
    about_torch = list(_findings(torch_itself))
    yield from about_torch
    if worst(about_torch) == BAD:
        names = ', '.join(examination.__name__ for examination in with_torch)
        yield Finding(WARN, 'the rest', f'could not be looked at without torch: {names}', 'See `torch` above.')
        return
    for examination in with_torch:
        yield from _findings(examination)


def _findings(examination: Examination) -> Iterator[Finding]:
    """Nothing that goes wrong in one look keeps the doctor from the others."""
    try:
        yield from examination()
    except Exception as error:
        name = examination.__name__.replace('_', ' ')
        yield Finding(WARN, name, f'could not be looked at: {type(error).__name__}: {machine.first_line(error)}')


def worst(findings: Iterable[Finding]) -> str:
    """The status of the worst; OK if there is none."""
    return max((finding.status for finding in findings), key=(OK, WARN, BAD).index, default=OK)


def line(finding: Finding) -> Table:
    """A finding, and below it what to do. Commands are never cut: they wrap as text does."""
    mark, style = MARKS[finding.status]
    table = Table.grid(padding=(0, 1))
    table.add_column(width=4)
    table.add_column(width=11)
    table.add_column(overflow='fold')
    table.add_row(Text(mark, style), Text(finding.subject), Text(finding.says))
    if finding.remedy:
        table.add_row('', '', Text(f'-> {finding.remedy}', 'bold'))
    return table


def conclusion(findings: Iterable[Finding]) -> str:
    """One sentence about all of them."""
    counts = {status: sum(finding.status == status for finding in findings) for status in (BAD, WARN)}
    if counts[BAD]:
        return f'{_things(counts[BAD])} will fail, {counts[WARN]} could be better: see what stands behind the arrows.'
    if counts[WARN]:
        return f'Ready. {_things(counts[WARN])} could be better: see what stands behind the arrows.'
    return 'Ready: everything is as it should be.'


def _things(count: int) -> str:
    return 'One thing' if count == 1 else f'{count} things'
