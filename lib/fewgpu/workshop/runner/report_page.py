"""The page of one learner's results: a table of all exercises, then each with its last verdict."""

from collections.abc import Iterator

from fewgpu.workshop.grading.verdict import BLOCKED, PASSED, Outcome
from fewgpu.workshop.runner.choose import command
from fewgpu.workshop.runner.page import bar, block, document, listing, picture, row, sentence, table, tag, text, when
from fewgpu.workshop.runner.results import Results, Row
from fewgpu.workshop.runner.words import explained, printed

MARKS = {PASSED: ('right', 'good'), BLOCKED: ('waits', 'soft')}


def report_page(results: Results) -> str:
    """The whole page, as HTML."""
    return document(f'{results.name}: fewgpu', '\n'.join(_body(results)))


def _body(results: Results) -> Iterator[str]:
    count = len(results.rows)
    could = sum(row.points or 10 for row in results.rows)
    yield tag('h1', f'fewgpu: {text(results.name)}')
    yield tag('p', f'{results.done} of {count} exercises solved, {results.earned} of {could} points. '
              + bar(results.earned / max(could, 1)))
    yield tag('p', f'As of {when(results.written)}.', 'soft')
    numbers = [(header, 'number') for header in ('points', 'attempts', 'hints')]
    yield table([('', ''), ('exercise', ''), ('', ''), *numbers, ('solved', '')], map(_summary, results.rows))
    for each in results.rows:
        if each.last is not None:
            yield tag('section', '\n'.join(_exercise(each)))
    yield tag('h2', 'The machine')
    yield tag('p', ', '.join(f'{text(name)} {text(value)}' for name, value in results.machine.items()), 'soft')


def _summary(each: Row) -> str:
    points = f'{each.best} / {each.points or 10}' if each.attempts else ''
    solved = when(each.passed_at) if each.done else 'begun' if each.attempts else ''
    title = text(sentence(each.title))
    if each.last is not None:
        title = f'<a href="#exercise-{each.number}">{title}</a>'
    seen = f' {tag("span", "(solution was seen)", "soft")}' if each.solution_seen else ''
    numbers = [(points, 'number'), (str(each.attempts or ''), 'number'), (str(each.hints or ''), 'number')]
    return row([(f'{each.number:02}', 'soft'), (title, 'name'), (bar(each.best / (each.points or 10)), ''), *numbers,
                (solved + seen, 'good' if each.done else 'open')])


def _exercise(each: Row) -> Iterator[str]:
    """The last verdict on an exercise."""
    verdict = each.last
    yield f'<h2 id="exercise-{each.number}">{each.number:02} {text(sentence(each.title))}</h2>'
    state = 'right' if verdict.passed else 'not right yet'
    style = 'good' if verdict.passed else 'open'
    again = tag('code', command(f'check {each.number:02} --seed {verdict.seed}'))
    yield tag('p', f'{tag("span", state, style)}: {verdict.earned} of {verdict.points} points on {when(each.last_at)}; '
                   f'attempt {each.attempts}; {again} repeats it.')
    for outcome in verdict.outcomes:
        yield from _outcome(outcome)
    if (said := printed(verdict)) and not verdict.passed:
        yield tag('h3', 'What the file printed')
        yield block(said)


def _outcome(outcome: Outcome) -> Iterator[str]:
    mark, style = MARKS.get(outcome.status, ('not yet', 'bad'))
    points = f'{outcome.points} {"point" if outcome.points == 1 else "points"}'
    facts = '; '.join([points, *(f'{name}: {value}' for name, value in outcome.figures.items())])
    mark = tag('span', mark, f'mark {style}')
    yield tag('p', f'{mark} {text(outcome.title)} {tag("span", text(f"({facts})"), "soft")}')
    said = '' if outcome.passed else tag('p', text(explained(outcome)), 'soft' if outcome.status == BLOCKED else '')
    drawing = picture(outcome.svg, f'drawing of the case above: {outcome.title}') or block(outcome.picture)
    yield tag('div', said + block(outcome.case) + listing(outcome.lines) + drawing, 'under')
