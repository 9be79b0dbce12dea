"""`./workshop.py check 05`: is it right, and if not, what is the misunderstanding?"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.rule import Rule
from rich.text import Text

from fewgpu.workshop.grading.verdict import Verdict
from fewgpu.workshop.runner.choose import NUMBER, chosen, chosen_or_next, console, leave_nothing_behind
from fewgpu.workshop.runner.graded import attempt


def check(
    exercises: Annotated[list[str] | None, typer.Argument(metavar='[NN ...]', help=NUMBER)] = None,
    file: Annotated[Path | None, typer.Option(
        help='Check this file instead of the one in exercises/; it is not noted down as yours.')] = None,
    seed: Annotated[int | None, typer.Option(
        min=0, max=2**63 - 1, help='Of the random cases: the same seed tries the same ones again.')] = None,
    full: Annotated[bool, typer.Option('--all', help='All failures in full, and not only the first.')] = False,
    to_json: Annotated[str, typer.Option(
        '--json', metavar='FILE', help='Write the verdicts there, too; - is the output.')] = '',
) -> None:
    """Check exercises: are they right, and if not, what is the misunderstanding?

    Exit code 0 if all of them are right, 1 if not.
    """
    if file and not file.exists():
        raise typer.BadParameter(f'there is no file {file}')
    if exercises:
        asked_for = [chosen(number) for number in exercises]
    else:   # a file says itself what it solves
        asked_for = [chosen(file.name) if file else chosen_or_next(None)]
    if file and len(asked_for) > 1:
        raise typer.BadParameter('--file is one file: name the one exercise that it solves')
    out = console(stderr=to_json == '-')
    leave_nothing_behind()
    verdicts = []
    try:
        for exercise in asked_for:
            if verdicts:
                out.print()
                out.print(Rule(style='dim', characters='-'))
            verdicts.append(attempt(out, exercise, file, seed=seed, full=full))
    except KeyboardInterrupt:
        out.print('Stopped.')
        raise typer.Exit(130) from None
    if len(verdicts) > 1:
        right = sum(verdict.passed for verdict in verdicts)
        out.print()
        out.print(Text(f'{right} of {len(verdicts)} exercises are right.', 'bold'))
    if to_json:
        _write(verdicts, to_json)
    raise typer.Exit(0 if all(verdict.passed for verdict in verdicts) else 1)


def _write(verdicts: list[Verdict], to: str) -> None:
    """A list of verdicts, also if it is only one."""
    text = json.dumps([verdict.to_json() for verdict in verdicts], indent=1) + '\n'
    if to == '-':
        sys.stdout.write(text)
        return
    try:
        Path(to).write_text(text, encoding='utf-8')
    except OSError as error:
        raise typer.BadParameter(f'cannot write to --json {to} ({error.strerror})') from None
