"""A verdict in the terminal. It reads well at 80 columns and without colour."""

from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.grading.grade import FILE
from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, PASSED, Outcome, Verdict
from fewgpu.workshop.runner import words
from fewgpu.workshop.runner.progress import Entry

_MARKS = {PASSED: ('✓', 'ok', 'green'), FAILED: ('✗', 'X', 'red'), BLOCKED: ('·', '.', 'dim')}
_LEFT = 16   # columns of mark, number and points


class Screen:
    """Prints one verdict: `begin`, a `row` a check as they end, and `end`."""

    def __init__(self, console: Console, exercise: Exercise, file: Path, *, full: bool = False) -> None:
        """`full`: all failures with their cases, and not only the first."""
        self._console, self._exercise, self._file, self._full = console, exercise, file, full
        self._unicode = console.encoding.lower().startswith('utf')
        self._seen: set[str] = set()
        self._numbers: dict[str, int] = {}   # of the checks, in their order

    def begin(self) -> None:
        """First of all, which file it is that is graded."""
        file = words.plain(f'Checking {words.near(self._file, self._exercise.root)}')
        self._console.print(Text(file, 'bold'), soft_wrap=True)   # no path is cut, so that it can be copied
        self._print(f'Exercise {self._exercise.number:02}: {self._exercise.title}')
        self._console.print()

    def row(self, outcome: Outcome) -> None:
        """A check: did it pass, its points, and the law that it is about."""
        self._seen.add(outcome.id)
        if outcome.id != FILE[0]:
            self._numbers.setdefault(outcome.id, len(self._numbers) + 1)
        number = self._numbers.get(outcome.id, '')
        mark, ascii_mark, style = _MARKS[outcome.status]
        left = Text.assemble((f' {mark if self._unicode else ascii_mark:2} ', style),
                             f'{number:>2} {words.points(outcome):>7}  ')
        title = Text(outcome.title, 'dim' if outcome.status == BLOCKED else '')
        for line in title.wrap(self._console, max(self._console.width - _LEFT, 20)):
            line.rstrip()
            self._console.print(Text.assemble(left, line))
            left = Text(' ' * _LEFT)
        if outcome.status == BLOCKED and outcome.message:
            self._print_below(outcome.message, 'dim')
        for name, value in outcome.figures.items():
            self._print_below(f'{name}: {value}', 'dim')

    def end(self, verdict: Verdict, entry: Entry | None, following: Exercise | None, *, own: bool = True) -> None:
        """What went wrong, the sum, and what comes next."""
        for outcome in verdict.outcomes:
            if outcome.id not in self._seen:   # the file has ended Python before
                self.row(outcome)
        failures = list(verdict.failures)
        for outcome in failures if self._full else failures[:1]:
            self.failure(outcome, verdict)
        if not self._full and len(failures) > 1:
            self._others(failures[1:], verdict, own)
        self._printed(verdict)
        self._console.print()
        self._print(words.result(verdict, entry), style='bold green' if verdict.passed else 'bold')
        for purpose, command in words.what_next(verdict, self._exercise, own, following):
            self._print_pair(purpose, command)

    def failure(self, outcome: Outcome, verdict: Verdict) -> None:
        """All that is known about a check that failed."""
        self._console.print()
        number = self._numbers.get(outcome.id)
        name = Text(f'Check {number}') if number else ''
        self._console.print(Rule(name, align='left', style='red', characters=line_of(self._console)))
        self._print(outcome.title, style='bold')
        self._print(words.explained(outcome))
        self.case(outcome)
        if outcome.lines:
            self._console.print()
        for line in outcome.lines:
            self._print(f'  {words.place(line, verdict, self._exercise.root)}', style='cyan')
            self._console.print(Text(f'      {words.plain(line.text).strip()}'), overflow='ellipsis', no_wrap=True)

    def case(self, outcome: Outcome) -> None:
        """The smallest case that failed, and its drawing."""
        for text in filter(None, (outcome.case, outcome.picture)):
            self._console.print()
            print_as_it_is(self._console, text, indent=0 if text == outcome.picture else 4)

    def _name(self, outcome: Outcome) -> str:
        number = self._numbers.get(outcome.id)
        return f'Check {number}: {outcome.title}' if number else outcome.title

    def _others(self, failures: list[Outcome], verdict: Verdict, own: bool) -> None:
        """One sentence on each further failure: the first is the one to look at."""
        unsolved = [each for each in failures if each.misconception == 'unsolved']
        wrong = [each for each in failures if each.misconception != 'unsolved']
        self._console.print()
        for outcome in wrong:
            where = f' ({words.place(outcome.lines[-1], verdict, self._exercise.root)})' if outcome.lines else ''
            self._print(f'{self._name(outcome)}{where}')
            self._print_below(words.one_line(words.explained(outcome)), indent=4)
        if wrong:
            self._print_pair('In full', words.again(verdict, own, ' --all'))
        if unsolved:
            wait = 'checks wait' if len(unsolved) > 1 else 'check waits'
            self._print(f'{len(unsolved)} more {wait} for what is still to be written.')

    def _printed(self, verdict: Verdict) -> None:
        text = words.printed(verdict)
        if text:
            self._console.print()
            self._print('Your file printed', style='dim')
            self._print_below(text, indent=4)

    def _print(self, text: str, style: str = '') -> None:
        print_indented(self._console, text, 0, style)

    def _print_below(self, text: str, style: str = '', indent: int = _LEFT) -> None:
        print_indented(self._console, text, indent, style)

    def _print_pair(self, purpose: str, command: str) -> None:
        """On one line where there is room: a command is never cut, so that it can be copied."""
        if len(purpose) + len(command) + 2 <= self._console.width:
            self._console.print(Text.assemble(f'{purpose}: ', (command, 'cyan')))
        else:
            self._print(f'{purpose}:')
            self._console.print(Text(f'  {command}', 'cyan'), soft_wrap=True)


def print_indented(console: Console, text: str, indent: int, style: str = '') -> None:
    """Sentences, wrapped; nothing is added at the ends of lines, so that they can be copied."""
    if not text:
        return
    for line in Text(words.plain(text).rstrip(), style).wrap(console, max(console.width - indent, 20)):
        line.rstrip()
        console.print(Text.assemble(' ' * indent, line))


def print_as_it_is(console: Console, text: str, indent: int, style: str = '') -> None:
    """Code and drawings: lines stay lines, also where they are too long; those that would be are not indented."""
    lines = words.plain(text).rstrip().expandtabs().splitlines()
    indent = min([indent, *(max(console.width - len(line), 0) for line in lines)])
    for line in lines:
        console.print(Text(' ' * indent + line, style), soft_wrap=True)


def line_of(console: Console) -> str:
    """What lines are drawn with."""
    return '─' if console.encoding.lower().startswith('utf') else '-'
