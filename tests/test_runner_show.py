"""A verdict as it is shown: in a terminal of any width, and as HTML. Nothing is lost, and nothing gets out."""

import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fewgpu.workshop.exercise import find
from fewgpu.workshop.grading.grader import Hints
from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, PASSED, Line, Outcome, Verdict
from fewgpu.workshop.runner import words
from fewgpu.workshop.runner.cell import Checked, page
from fewgpu.workshop.runner.hint import ladder
from fewgpu.workshop.runner.progress import Entry
from fewgpu.workshop.runner.show import Screen

EXERCISE = find(1)
CASE, PICTURE = 'f([1, 2])\nyours     [2]\nexpected  [1]', 'stage 0  F0 B0\nstage 1  .. F0'
WRONG = Outcome('f', 'a law of f', 3, FAILED, 'known', 'It is so and so, and that matters.', CASE,
                [Line(4, '    return [x]')], PICTURE, '<svg xmlns="http://www.w3.org/2000/svg"/>')
OTHER = Outcome('g', 'a law of g', 2, FAILED, 'known', 'The other is wrong. Look.', 'g(7)', [Line(9, 'def g(x):')],
                'O-O')
WAITS = Outcome('h', 'a law of h', 1, BLOCKED, message='It builds upon check 2.')
RIGHT = Outcome('e', 'a law of e', 4, PASSED, figures={'bytes a rank': '1,024'})


def verdict(*outcomes: Outcome, printed: str = '') -> Verdict:
    return Verdict(1, EXERCISE.name, str(EXERCISE.file), 77, list(outcomes), printed)


def screen(verdict: Verdict, *, width: int = 80, full: bool = False, encoding: str = 'utf-8') -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, errors='replace', newline='\n')
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    shown = Screen(console, EXERCISE, Path(verdict.file), full=full)
    shown.begin()
    heard = 0 if verdict.outcomes[0].id == 'file' else 2   # the others have not been heard of before the end
    for outcome in verdict.outcomes[:heard]:
        shown.row(outcome)
    shown.end(verdict, Entry(), None)
    out.flush()
    return raw.getvalue().decode(encoding)


def flat(text: str) -> str:
    return ' '.join(text.split())


@pytest.mark.parametrize('width', [40, 80, 200])
def test_the_screen_says_all_there_is_to_know(width):
    text = screen(verdict(RIGHT, WRONG, WAITS), width=width)
    assert text.splitlines()[0] == 'Checking exercises/01_microbatch.py'
    for part in ('4 of 4', 'a law of e', 'bytes a rank: 1,024', '0 of 3', 'a law of f', '0 of 1', 'a law of h',
                 'It builds upon check 2.', 'It is so and so, and that matters.', 'exercises/01_microbatch.py:4',
                 'return [x]', '4 of 8 points.', 'check 01 --seed 77', 'hint 01'):
        assert part in flat(text)
    for line in [*CASE.splitlines(), *PICTURE.splitlines()]:
        assert re.search(rf'^ *{re.escape(line)}$', text, re.MULTILINE)


@given(st.integers(40, 120), st.lists(st.sampled_from([RIGHT, WRONG, WAITS, OTHER]), min_size=1, unique_by=id),
       st.booleans())
def test_no_line_is_wider_than_the_screen_but_commands_that_are_copied(width, outcomes, full):
    for line in screen(verdict(*outcomes), width=width, full=full).splitlines():
        assert len(line) <= width or 'workshop.py' in line
        assert line == line.rstrip()


def test_the_first_failure_is_the_one_to_look_at_unless_all_are_asked_for():
    brief, full = (screen(verdict(WRONG, OTHER), full=full) for full in (False, True))
    assert CASE.splitlines()[0] in brief and 'g(7)' not in brief
    assert 'Check 2: a law of g (exercises/01_microbatch.py:9)\n    The other is wrong. Look.' in brief
    assert 'check 01 --seed 77 --all' in brief
    assert 'g(7)' in full and 'O-O' in full


def test_checks_have_the_numbers_that_blocked_ones_name():
    text = screen(verdict(RIGHT, WRONG, WAITS))
    for number, title in enumerate(('a law of e', 'a law of f', 'a law of h'), start=1):
        assert re.search(rf' {number}  . of \d +{title}', text)


def test_a_file_that_ends_python_is_shown_with_all_that_did_not_run():
    ended = Outcome('file', 'the file can be loaded', 0, FAILED, 'exits', 'The file ends Python.',
                    lines=[Line(2, 'exit()')])
    text = screen(verdict(ended, *(Outcome(name, f'law {name}', 5, BLOCKED) for name in 'ab')))
    assert [re.sub(r' +', ' ', line) for line in text.splitlines()[3:6]] == [
        ' ✗ the file can be loaded', ' · 1 0 of 5 law a', ' · 2 0 of 5 law b']
    assert '0 of 10 points.' in text and 'exercises/01_microbatch.py:2' in text


@pytest.mark.parametrize('encoding', ['ascii', 'cp1252', 'utf-8'])
def test_any_terminal_can_show_it(encoding):
    text = screen(verdict(RIGHT, WRONG, WAITS, printed='→ é'), encoding=encoding)
    assert 'ok  ' in text if encoding != 'utf-8' else '✓' in text


@given(st.text(alphabet=st.characters(codec='utf-8'), max_size=40))
def test_what_a_file_prints_cannot_move_the_cursor_or_colour_the_screen(text):
    shown = screen(verdict(RIGHT, printed=text))
    assert not re.search(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]', shown)


def test_colours_and_titles_that_a_file_prints_leave_no_trace():
    printed = '\x1b[2J\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\rnext\r\nlast'
    assert words.plain(printed) == 'red link\nnext\nlast'


def test_markup_in_what_a_learner_writes_is_text():
    outcome = Outcome('f', 'a [bold]law[/]', 10, FAILED, '', 'a [red]b[/red] :smile:', '[link=x]y[/link]',
                      [Line(1, 'x = y[/foo]')], '[/]')
    text = screen(verdict(outcome, printed='[/bold]'))
    for part in ('a [bold]law[/]', 'a [red]b[/red] :smile:', '[link=x]y[/link]', 'x = y[/foo]', '[/bold]'):
        assert part in text


def test_much_output_is_shortened_in_the_middle():
    many = '\n'.join(f'line {number}' for number in range(500)) + 'x' * 999
    shown = words.printed(verdict(RIGHT, printed=many)).splitlines()
    assert len(shown) == words.MOST_PRINTED and shown[0] == 'line 0' and '489 lines are left out' in ''.join(shown)
    assert shown[-1].startswith('line 499x') and len(shown[-1]) <= 200


def test_what_is_next_depends_on_what_came_out():
    def commands(*outcomes, own=True):
        return ' '.join(command for _, command in words.what_next(verdict(*outcomes), EXERCISE, own, EXERCISE))

    unsolved = Outcome('f', 'law', 10, FAILED, 'unsolved', 'It is still to be written.')
    assert 'hint 01' in commands(unsolved) and '--seed' not in commands(unsolved)
    assert '--seed 77' in commands(WRONG) and '--file' not in commands(WRONG) and '--file' in commands(WRONG, own=False)
    assert 'solution 01' in commands(RIGHT) and 'exercises/01_microbatch.py' in commands(RIGHT)


def test_the_sum_is_compared_with_earlier_attempts():
    assert words.result(verdict(RIGHT, WRONG), Entry(best=6)).endswith('4 of 7 points. (Best so far: 6.)')
    assert words.result(verdict(RIGHT, WRONG), Entry(best=4)) == '4 of 7 points.'
    assert 'solved before' in words.result(verdict(RIGHT, WRONG), Entry(best=7, passed_at='then'))
    assert words.result(verdict(RIGHT), Entry(attempts=3)).endswith('Solved! (attempt 3)')


# Hints


def test_the_ladder_shows_the_failing_case_where_there_is_one():
    hints = Hints(idea='idea', place='place', outline='outline')
    assert [step.number for step in ladder(hints, WRONG)] == [1, 2, 3, 4]
    assert [step.number for step in ladder(hints, None)] == [1, 2, 4]
    third = ladder(hints, WRONG)[2]
    assert CASE in third.drawing and PICTURE in third.drawing and WRONG.message == third.text


# Notebooks


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.text = ''
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        assert all(name in ('style', 'src', 'alt') for name, _ in attributes)
        if tag != 'img':
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


NASTY = '<script>alert(1)</script>', '"><img src=x onerror=y>', '&amp;', "'", '</pre>'
TEXT = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
FILES = TEXT.filter(lambda name: '/' not in name and name.strip('.'))   # as a path's last part may be
OUTCOMES = st.builds(
    Outcome, id=TEXT, title=TEXT, points=st.integers(1, 5), status=st.sampled_from([PASSED, FAILED, BLOCKED]),
    message=TEXT, case=TEXT, picture=TEXT, svg=TEXT, figures=st.dictionaries(TEXT, TEXT, max_size=1),
    lines=st.lists(st.builds(Line, st.integers(1), TEXT, FILES), max_size=1))


@given(st.lists(OUTCOMES, min_size=1, max_size=4, unique_by=lambda outcome: outcome.id), TEXT)
def test_html_escapes_whatever_it_shows(outcomes, printed):
    shown = Tags(page(verdict(*outcomes, printed=printed), EXERCISE, None, None))
    assert shown.open == []
    assert shown.names <= {'div', 'b', 'code', 'pre', 'table', 'tr', 'td', 'details', 'summary', 'img'}


def test_html_says_what_the_screen_says_and_shows_the_picture():
    html = page(verdict(RIGHT, WRONG, WAITS), EXERCISE, Entry(best=4), None)
    text = flat(Tags(html).text)
    for part in ('exercises/01_microbatch.py', 'a law of e', 'It is so and so, and that matters.', flat(CASE),
                 'exercises/01_microbatch.py:4', 'return [x]', '4 of 8 points.', 'It builds upon check 2.',
                 'check(1, seed=77)'):
        assert part in text
    assert 'data:image/svg+xml;base64,' in html


def test_what_check_returns_is_true_if_the_exercise_is_right():
    assert Checked(verdict(RIGHT)) and not Checked(verdict(RIGHT, WRONG))
    assert repr(Checked(verdict(RIGHT, WRONG))) == '<exercise 01: 4 of 7 points>'
