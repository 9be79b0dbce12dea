"""`./workshop.py demo NAME`: one system of the lectures at a size that runs here, its claim put to the test."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table

from fewgpu.workshop.claims import TEXTS, Finding
from fewgpu.workshop.demos import CODES, DEMOS, Show, run, summary
from fewgpu.workshop.process import run_to_end
from fewgpu.workshop.writable import make_writable, written

WIDE = 120   # columns of a terminal


def demo(
    name: Annotated[str, typer.Argument(help='Which; without, the list of all.')] = '',
    every: Annotated[bool, typer.Option('--all', help='All of them, one after the other, and one table.')] = False,
    out: Annotated[Path, typer.Option(help='The folder for the picture.')] = Path('results'),
    report: Annotated[Path | None, typer.Option(help='Write the findings as JSON, too.')] = None,
) -> None:
    """Show one system of the lectures, and put its claim to the test."""
    console = Console(highlight=False)
    if name and name not in DEMOS:
        raise typer.BadParameter(f'there is no demo {name}; there are {", ".join(DEMOS)}')
    if not name and not every:
        return _list(console)
    make_writable('--out', [_picture(out, one) for one in ([name] if name else DEMOS)], [out])   # now, not afterwards
    if report:
        make_writable('--report', [report])
    findings = [_one(console, name, out)] if name else _all(console, out)
    if report:
        with written(report, '--report') as file:
            file.write(json.dumps([found for part in findings for found in part or ()]).encode())
    raise typer.Exit(any(part is None for part in findings))


def _picture(out: Path, name: str) -> Path:
    return out / f'demo-{name}.png'


def _list(console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name in DEMOS:
        table.add_row(f'[bold]{name}[/]', summary(name))
    console.print(table)
    console.print('\n./workshop.py demo NAME shows one (under a minute) and puts claims of the lectures (C24, say) '
                  'and of papers (P01) to the test; demo --all shows all of them.', style='dim')


def _one(console: Console, name: str, out: Path) -> list[Finding]:
    """Run one here; what it found."""
    console.print(f'[bold]{name}[/]: {summary(name)}\n')
    begun, show = time.perf_counter(), Show(console)
    picture = run(name, show)
    path = _picture(out, name)
    with written(path, '--out') as file:
        picture.savefig(file, format='png', dpi=150)
    console.print(f'\nPicture: {path} ({time.perf_counter() - begun:.0f} s)', soft_wrap=True)
    return list(show.claims)


def _all(console: Console, out: Path) -> list[list[Finding] | None]:
    """Run every one in a process of its own, which cannot disturb the next; then one table of all.

    None stands for one that failed.
    """
    findings: dict[str, list[Finding] | None] = {}
    for number, name in enumerate(DEMOS, 1):
        console.print(Rule(f'{number}/{len(DEMOS)}', align='left', style='dim'))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'report.json'
            code, complaint = run_to_end([sys.executable, '-P', '-m', 'fewgpu.workshop', 'demo', name,
                                          '--out', str(out), '--report', str(path)])
            if path.exists() and code == 0:
                findings[name] = [Finding(*fields) for fields in json.loads(path.read_text(encoding='utf-8'))]
            else:
                findings[name] = None
                console.print(f'{name} failed: {complaint or f"exit code {code}"}', style='bold', markup=False)
        console.print()
    console.print(table(findings, console.width))
    return list(findings.values())


def table(findings: dict[str, list[Finding] | None], width: int) -> Table:
    """One row a claim: what the lectures say, what was found here, and where a difference comes from.

    The three stand side by side, or below each other where the terminal is narrower than WIDE columns.
    """
    shown = Table(title='All systems', title_justify='left', show_lines=True, caption=CODES, caption_justify='left')
    beside = ('demo', 'claim', 'found here', '', 'where a difference comes from')
    below = ('demo', 'claim\nwhat was found here\nwhere a difference comes from')
    for heading in beside if width >= WIDE else below:
        shown.add_column(heading, overflow='fold')
    for name, found in findings.items():
        if found is None:
            shown.add_row(name, 'failed')
        for one in found or ():
            claim, found_here, because = map(escape, (f'{one.claim} {TEXTS[one.claim]}', one.found, one.because))
            if width >= WIDE:
                shown.add_row(name, claim, found_here, one.verdict, because)
            else:
                said = f'[bold]{claim}[/]', f'{one.verdict}: {found_here}', because
                shown.add_row(name, '\n'.join(filter(None, said)))
    return shown
