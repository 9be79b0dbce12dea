"""`./workshop.py solution 05`: how it may be solved, for those who have solved it, or want it anyway."""

from typing import Annotated

import typer
from rich.syntax import Syntax
from rich.text import Text

from fewgpu.workshop.runner import words
from fewgpu.workshop.runner.choose import chosen, command, console
from fewgpu.workshop.runner.progress import Progress, record_solution


def solution(
    exercise: Annotated[str, typer.Argument(metavar='NN', help='Its number, as in 05.')],
    anyway: Annotated[bool, typer.Option('--anyway', help='Also if you have not solved it yet.')] = False,
) -> None:
    """Show the solution of an exercise that you have solved."""
    asked_for, out = chosen(exercise), console()
    number = f'{asked_for.number:02}'
    entry = Progress.load(asked_for.root).of(asked_for.name)
    if not entry.done and not anyway:
        so_far = f'best so far: {entry.best} of {entry.points} points' if entry.attempts else 'it was not checked yet'
        out.print(Text(f'Exercise {number} is not solved yet ({so_far}).'))
        out.print(Text(f'A hint: {command(f"hint {number}")}'))
        out.print(Text(f'The solution all the same: {command(f"solution {number} --anyway")}'))
        raise typer.Exit(1)
    text = asked_for.solution.read_text(encoding='utf-8')
    if out.is_terminal:
        out.print(Syntax(text, 'python', theme='ansi_light', background_color='default', word_wrap=True))
        out.print()
        out.print(Text(f'This is {words.near(asked_for.solution, asked_for.root)}.', 'dim'))
    else:
        print(text, end='')
    try:
        record_solution(asked_for.root, asked_for.name)
    except OSError as error:
        console(stderr=True).print(Text(f'It could not be noted down that it was shown: {words.why(error)}.'))
