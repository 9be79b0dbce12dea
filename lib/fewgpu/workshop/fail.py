"""`./workshop.py fail straggler`: a fault of distributed training, on a real run, and what the kit says of it.

`fail --quiz` runs one without its name, and asks for it.
"""

import sys
from random import Random, SystemRandom
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fewgpu.trace import EXCHANGE, WAITS, Timeline
from fewgpu.workshop.failures import FAULTS, Outcome, module, run, summary

_SEEDS = 10_000
MEANING = {'U': 'updates', EXCHANGE: 'exchanges of gradients'}
SHORT = 0.03   # of a timeline: an exchange that takes less is not drawn, or all would have to be as wide as it needs
MARKS = {'U': '=', EXCHANGE: '*'}   # in a timeline of letters


def fail(
    name: Annotated[str, typer.Argument(help='Which fault; without, the list. After --quiz: its seed.')] = '',
    quiz: Annotated[bool, typer.Option('--quiz', help='Run one of them, and ask which it is.')] = False,
    answer: Annotated[bool, typer.Option('--answer', help='Do not ask: say at once which it is.')] = False,
) -> None:
    """Break a small training on purpose: seven faults, how they look, and what the kit says of them."""
    console = Console(highlight=False)
    if quiz:
        return _quiz(console, _seed(name), answer)
    if not name:
        return _list(console)
    if not (fault := _meant(name.lower())):
        raise typer.BadParameter(f'there is no fault {name}; there are {", ".join(FAULTS)}')
    console.print(f'[bold]{fault}[/]: {summary(fault)}')
    outcome = run(fault, Random(SystemRandom().randrange(_SEEDS)))
    _show(console, outcome)
    _explain(console, fault, outcome)


def _seed(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f'--quiz chooses the fault: leave {text} out, or give a number to repeat a quiz')
    return int(text) if text else SystemRandom().randrange(_SEEDS)


def _list(console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name in FAULTS:
        table.add_row(f'[bold]{name}[/]', summary(name))
    console.print(table)
    console.print('\n./workshop.py fail NAME runs a small training with that fault (some seconds), shows its timeline '
                  'and what the kit says, and then what it was. fail --quiz runs one of them and asks you; '
                  'fail --quiz 7 repeats the one of seed 7.', style='dim')


def _quiz(console: Console, seed: int, answer: bool) -> None:
    """Exit code 1 for a wrong answer."""
    random = Random(seed)
    name = random.choice(FAULTS)
    console.print(f'A training with a fault: which one is it? [dim](fail --quiz {seed} repeats it.)[/]')
    outcome = run(name, random)
    _show(console, outcome)
    if answer:
        console.print(f'It is [bold]{name}[/].')
        return _explain(console, name, outcome)
    given = _ask(console)
    if given == name:
        console.print(f'\n[bold green]Right[/]: it is {name}.')
    else:
        console.print(f'\n[bold red]No[/]: it is [bold]{name}[/], not {given}.')
        console.print(f'How {given} shows: {module(given).SIGN}.', soft_wrap=not console.is_terminal)
        console.print(f'How {name} shows: {module(name).SIGN}.', soft_wrap=not console.is_terminal)
    _explain(console, name, outcome)
    raise typer.Exit(given != name)


def _ask(console: Console) -> str:
    """One of FAULTS. Raises BadParameter where nobody can be asked again."""
    for number, name in enumerate(FAULTS, 1):
        console.print(f'  {number}  {name}')
    asks = sys.stdin is not None and sys.stdin.isatty()   # a closed one is None
    while True:
        if asks:
            text = typer.prompt('Its number or name')
        else:
            text = sys.stdin.readline() if sys.stdin is not None else ''
            if not text:
                raise typer.BadParameter('no answer came: give its name on standard input, or --answer to be told')
        if fault := _meant(text.strip().lower()):
            return fault
        if not asks:
            raise typer.BadParameter(f'the answer is a number from 1 to {len(FAULTS)} or a name, not {text.strip()!r}')
        console.print(f'A number from 1 to {len(FAULTS)}, or a name.')


def _meant(text: str) -> str:
    """The fault that somebody has named; '' for none."""
    if text.isascii() and text.isdigit():
        return FAULTS[int(text) - 1] if 1 <= int(text) <= len(FAULTS) else ''
    words = text.replace(' ', '-').replace('_', '-')
    fitting = [name for name in FAULTS if words and name.startswith(words)]
    return fitting[0] if len(fitting) == 1 else ''


def _show(console: Console, outcome: Outcome) -> None:
    """The timeline, and the kit's own message."""
    console.print(f'\n{outcome.title}', style='bold')
    console.print(drawn(console, outcome.timeline), no_wrap=True, overflow='crop', markup=False)
    console.print('\nThe kit says:', style='bold')
    console.print(outcome.message or 'nothing', markup=False, soft_wrap=not console.is_terminal)
    console.print()


def _explain(console: Console, name: str, outcome: Outcome) -> None:
    fault = module(name)
    for heading, text in (('What it was:', fault.WHAT.format(**outcome.where)), ('What to change:', fault.CHANGE)):
        console.print(Text.assemble((f'{heading} ', 'bold'), text), soft_wrap=not console.is_terminal)


def drawn(console: Console, timeline: Timeline) -> Text | str:
    """Blocks, as `./workshop.py draw` has them, where they fit a terminal; else the letters of exercise 17."""
    if console.is_terminal:
        from fewgpu.workshop.blocks import blocks

        long = Timeline(tuple(tuple(span for span in row if span.op.kind != EXCHANGE or span.seconds > SHORT
                                    * timeline.makespan) for row in timeline.rows), timeline.names)
        exchanges = any(span.op.kind == EXCHANGE for row in long.rows for span in row)
        unicode = console.encoding.startswith('utf')
        looks = {'colour': console.color_system is not None and not console.no_color, 'line': '─' if unicode else '-'}
        if any(long.rows) and (text := blocks(long, console.width, **looks)):
            return text + Text(f'\nA: {MEANING[EXCHANGE]}' if exchanges else '')
    return letters(timeline)


def letters(timeline: Timeline) -> str:
    """At most 78 characters wide."""
    from fewgpu.workshop.practice.timeline import timeline as draw

    rows = [(name, [(span.start * 1e3, span.end * 1e3, _letter(span.op.kind, span.op.micro_batch)) for span in row
                    if span.op.kind not in WAITS])
            for name, row in zip(timeline.names, timeline.rows, strict=True)]
    kinds = {span.op.kind for row in timeline.rows for span in row}
    marks = ''.join(f', {mark} {MEANING[kind]}' for kind, mark in MARKS.items() if kind in kinds)
    return (f'{draw(rows, round(timeline.makespan * 1e3, 1), "ms")}\n'
            f'0 1 2 are forwards, a b c backwards{marks}.')


def _letter(kind: str, number: int) -> str:
    return MARKS.get(kind) or ('0123456789' if kind == 'F' else 'abcdefghij')[number % 10]
