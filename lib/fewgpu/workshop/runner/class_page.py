"""The page of a class: what several are stuck on, who is where, and what each one is stuck on."""

from collections.abc import Iterator
from datetime import datetime

from fewgpu.workshop.runner.page import block, document, listing, row, sentence, table, tag, text
from fewgpu.workshop.runner.results import Results, Row
from fewgpu.workshop.runner.roster import Common, Roster, ago, row_of, wants_help, wrong_with
from fewgpu.workshop.runner.words import explained


def class_page(roster: Roster, now: datetime) -> str:
    """The whole page, as HTML."""
    return document('The class: fewgpu', '\n'.join(_body(roster, now)))


def _body(roster: Roster, now: datetime) -> Iterator[str]:
    yield tag('h1', 'The class')
    yield tag('p', f'{len(roster.learners)} learners, as of {now.day} {now:%B %Y, %H:%M}.', 'soft')
    if common := roster.common():
        yield tag('h2', 'What several are stuck on')
        yield from map(_common, common)
    yield tag('h2', 'Who is where')
    cells = [(f'{number:02}', 'cell') for number in roster.numbers]
    yield table([('learner', ''), *cells, ('points', 'number'), ('last check', 'number')],
                [_learner(learner, roster.numbers, now) for learner in roster.learners] + [_sums(roster)])
    yield tag('p', '&#10003; solved (* after its solution was seen); a number: points so far; - not begun.', 'soft')
    titles = '; '.join(f'{number:02} {title}' for number, title in sorted(roster.titles.items()))
    yield tag('p', text(f'{titles}.'), 'soft')
    stuck = [learner for learner in roster.learners if learner.current]
    if stuck:
        yield tag('h2', 'Who is stuck on what')
    for learner in sorted(stuck, key=lambda each: -each.current.attempts):
        yield tag('section', ''.join(_stuck(learner, learner.current, now)))
    if roster.left_out:
        yield tag('h2', 'Files that were left out')
        yield from (tag('p', f'{text(each.file)}: {text(each.why)}') for each in roster.left_out)


def _common(one: Common) -> str:
    name = tag('strong', f'{len(one.learners)} learners, exercise {one.exercise:02}')
    about = f'{text(one.misconception)}: ' if one.misconception else f'{text(one.check)}: '
    who = tag('span', text(f'({", ".join(one.learners)})'), 'soft')
    return tag('p', f'{name}, {about}{text(one.message)} {who}')


def _learner(learner: Results, numbers: list[int], now: datetime) -> str:
    name = tag('strong', text(learner.name), 'open') if wants_help(learner) else text(learner.name)
    return row([(name, 'name'), *(_cell(row_of(learner, number)) for number in numbers),
                (str(learner.earned), 'number'), (ago(learner.last_at, now), 'number')])


def _cell(each: Row | None) -> tuple[str, str]:
    if each is None or not each.attempts:
        return '-', 'cell soft'
    if each.done:
        return '&#10003;' + '*' * each.solution_seen, 'cell good'
    return str(each.best), 'cell open'


def _sums(roster: Roster) -> str:
    sums = [(str(roster.done(number)), 'cell soft') for number in roster.numbers]
    return row([('solved by', 'soft'), *sums, ('', ''), ('', '')])


def _stuck(learner: Results, current: Row, now: datetime) -> Iterator[str]:
    """A learner's current exercise, and the first thing that is wrong with the last attempt."""
    tries = f'{current.attempts} {"try" if current.attempts == 1 else "tries"}'
    hints = f', {current.hints} {"hint" if current.hints == 1 else "hints"}' if current.hints else ''
    yield tag('h3', f'{text(learner.name)}: {current.number:02} {text(current.title)}')
    points = f'{current.best} of {current.points or 10} points'
    yield tag('p', f'{tries}{hints}, last {ago(current.last_at, now)}; {points}', 'soft')
    if wrong := wrong_with(current):
        yield tag('p', f'{text(sentence(wrong.title))}: {tag("span", "not yet", "bad")}. {text(explained(wrong))}')
        yield block(wrong.case) + listing(wrong.lines)
