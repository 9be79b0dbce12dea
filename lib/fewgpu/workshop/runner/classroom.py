"""`./workshop.py class FOLDER`: for teachers. Who is where, and stuck on what, from the results that learners share."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fewgpu.workshop.runner.choose import command, console, every
from fewgpu.workshop.runner.class_page import class_page
from fewgpu.workshop.runner.whole import write
from fewgpu.workshop.runner.results import Results
from fewgpu.workshop.runner.roster import Roster, ago, as_data, read, row_of, wants_help, wrong_with


def classroom(
    folder: Annotated[Path, typer.Argument(help='Where learners share: `./workshop.py report --share FOLDER`.')],
    html: Annotated[Path | None, typer.Option(metavar='FILE', help='Also write it as a page.')] = None,
    to_json: Annotated[Path | None, typer.Option(
        '--json', metavar='FILE', help='Also write it as JSON; - for the terminal instead.')] = None,
) -> None:
    """For teachers: who is where, stuck on what, since when; and what several are stuck on.

    Reads what learners have shared in FOLDER, or the JSON beside their pages if they have handed that in. Files that
    cannot be read are named, and left out.
    """
    now, titles = datetime.now().astimezone(), {exercise.number: exercise.title for exercise in every()}
    try:
        roster = read(folder, titles)
        if html:
            write(html, class_page(roster, now))
        if to_json and to_json != Path('-'):
            write(to_json, json.dumps(as_data(roster), indent=1) + '\n')
    except OSError as error:
        raise typer.BadParameter(f'{error.filename or folder}: {error.strerror or error}') from error
    if to_json == Path('-'):
        return print(json.dumps(as_data(roster), indent=1))
    out = console()
    for part in _parts(roster, now):
        out.print(part)
    if html:
        out.print(f'The page is {html}', soft_wrap=True)


def _parts(roster: Roster, now: datetime) -> Iterator[Table | Text]:
    """What the terminal shows, from top to bottom."""
    if roster.learners:
        yield _learners(roster, now)
        yield Text('# solved, 0 to 9 points of ten so far, . not begun; ! has tried often\n', 'dim')
        yield _exercises(roster)
    else:
        yield Text(f'Nobody has shared anything here yet: `{command("report --share FOLDER --name NAME")}` does that.')
    for one in roster.common():
        name = one.misconception or one.check
        yield Text(f'\n{len(one.learners)} are stuck on exercise {one.exercise:02}, {name}: {one.message}\n'
                   f'({", ".join(one.learners)})')
    if roster.left_out:
        yield Text('\nLeft out:')
        for each in roster.left_out:
            yield Text(f'  {each.file}: {each.why}', 'yellow')


def _learners(roster: Roster, now: datetime) -> Table:
    table = _table(gap=1)
    table.add_column('learner', max_width=20, overflow='ellipsis', no_wrap=True)
    table.add_column(''.join(str(number % 10) for number in roster.numbers), no_wrap=True)
    table.add_column('points', justify='right', no_wrap=True)
    table.add_column('at', no_wrap=True)
    table.add_column('stuck on', overflow='fold')
    table.add_column('tries', justify='right', no_wrap=True)
    table.add_column('last check', justify='right', no_wrap=True)
    for learner in roster.learners:
        current = learner.current
        wrong = wrong_with(current) if current else None
        table.add_row(
            learner.name, ''.join(_cell(learner, number) for number in roster.numbers), str(learner.earned),
            f'{current.number:02}' if current else '', (wrong.misconception or wrong.title) if wrong else '',
            f'{"! " if wants_help(learner) else ""}{current.attempts}' if current else '', ago(learner.last_at, now),
            style='bold yellow' if wants_help(learner) else '')
    return table


def _cell(learner: Results, number: int) -> str:
    row = row_of(learner, number)
    if row is None or not row.attempts:
        return '.'
    return '#' if row.done else str(min(9, 10 * row.best // (row.points or 10)))


def _exercises(roster: Roster) -> Table:
    table = _table()
    for header in ('', 'exercise', 'solved', 'begun'):
        table.add_column(header, justify='left' if header in ('', 'exercise') else 'right')
    for number in roster.numbers:
        table.add_row(f'{number:02}', roster.titles[number], str(roster.done(number)), str(roster.begun(number) or ''))
    return table


def _table(gap: int = 2) -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, header_style='')
