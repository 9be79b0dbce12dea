"""`./workshop.py report`: the page holds what was reached and nothing that acts; only what was promised is shared."""

import base64
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.workshop.grading.verdict import Line, Outcome, Verdict
from fewgpu.workshop.runner.learner import learner
from fewgpu.workshop.runner.page import STYLE
from fewgpu.workshop.runner.report import share_in
from fewgpu.workshop.runner.whole import write
from fewgpu.workshop.runner.report_page import report_page
from fewgpu.workshop.runner.results import Results, Row, clean
from tests.learners import at, copy_of_this_clone, results, right, row, workshop, wrong

OURS = {'html', 'head', 'meta', 'title', 'style', 'body', 'section', 'h1', 'h2', 'h3', 'p', 'a', 'span', 'strong',
        'div', 'code', 'pre', 'img', 'table', 'thead', 'tbody', 'tr', 'th', 'td'}
ANY_TEXT = st.text(st.one_of(st.characters(), st.sampled_from('<>&"\'')), max_size=20)
NASTY = st.one_of(ANY_TEXT, st.sampled_from([
    '<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "' onload='x", '</pre></style><script>', '&lt;',
    '<!--', ']]>']))


class Page(HTMLParser):
    """The elements of a page, where they point to, and all that is read in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.read = ''
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.read += data


@st.composite
def anybodys(draw) -> Results:
    """Results in which every text may be anything."""
    def some() -> str:
        return draw(NASTY)

    def verdict() -> Verdict:
        status = st.sampled_from(['passed', 'failed', 'blocked'])
        outcomes = [Outcome(some(), some(), 5, draw(status), some(), some(), some(),
                            [Line(draw(st.integers(0, 999)), some(), some())], some(), figures={some(): some()})
                    for _ in range(draw(st.integers(1, 3)))]
        return Verdict(1, some(), some(), 3, outcomes, some())

    rows = [Row(number, some(), some(), 3, 10, 2, 1, draw(st.booleans()), draw(st.sampled_from([None, at(0)])), at(0),
                draw(st.sampled_from([None, verdict()]))) for number in range(1, draw(st.integers(1, 4)))]
    return Results(some(), '00aa11bb', at(5), {some(): some()}, rows)


@given(anybodys())
def test_no_text_becomes_an_element_and_nothing_is_fetched(anything):
    page = Page(report_page(anything))
    assert page.tags <= OURS
    assert not [name for name, _ in page.attributes if name.startswith('on')]
    points_to = [value for name, value in page.attributes if name in ('src', 'href', 'srcset', 'action')]
    assert all(value.startswith(('#exercise-', 'data:image/svg+xml;base64,')) for value in points_to)
    assert 'url(' not in STYLE and '@import' not in STYLE


@given(anybodys())
def test_what_went_wrong_stands_on_the_page_as_it_is(anything):
    page = Page(report_page(anything)).read
    said = [anything.name] + [text for each in anything.rows if each.last for outcome in each.last.outcomes
                              for text in (outcome.title, outcome.lines[0].text.strip(),
                                           '' if outcome.passed else outcome.message)]
    for text in said:
        # A parser reads \r as a new line, and what cannot be encoded is replaced.
        assert text.encode('utf-8', 'replace').decode() in page


def test_the_page_says_how_far_one_is_what_is_wrong_and_how_to_repeat_it():
    page = Page(report_page(results('Ada', row(1, right(), attempts=3), row(2, wrong(), attempts=4), row(3)))).read
    assert 'fewgpu: Ada' in page and '1 of 3 exercises solved, 10 of 30 points' in page
    assert 'The rows are dealt out like cards.' in page and 'sizes(1, 2)\nyours     [1, 0]' in page
    assert 'line 13:  def sizes(rows, chunks):' in page and './workshop.py check 02 --seed 7' in page
    assert 'printed by me' in page


def test_a_picture_is_in_the_page_and_takes_the_place_of_its_text():
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><text>F0 é</text></svg>'
    drawn = Page(report_page(results('Ada', row(1, wrong(svg=svg, picture='F0 B0')))))
    source = dict(drawn.attributes)['src']
    assert base64.b64decode(source.partition('base64,')[2]).decode() == svg and 'F0 B0' not in drawn.read
    assert 'F0 B0' in Page(report_page(results('Ada', row(1, wrong(picture='F0 B0'))))).read


@given(anybodys())
def test_results_are_read_as_they_were_written_but_for_what_could_steer_a_terminal(anything):
    data = json.loads(json.dumps(anything.to_json()))
    again = Results.from_json(data)
    assert again.name == ' '.join(clean(anything.name).split())   # in a line
    assert [each.title for each in again.rows] == [clean(each.title) for each in anything.rows]
    assert [each.last and [outcome.message for outcome in each.last.outcomes] for each in again.rows] == [
        each.last and [clean(outcome.message) for outcome in each.last.outcomes] for each in anything.rows]
    assert Results.from_json(json.loads(json.dumps(again.to_json()))) == again


@given(st.text(st.characters()))
def test_clean_text_can_be_printed_and_keeps_what_could_be_printed_before(text):
    assert all(each.isprintable() or each == '\n' for each in clean(text))
    clean(text).encode('utf-8')
    if text.replace('\n', '').isprintable():
        assert clean(text) == text


def test_what_is_shared_tells_neither_what_was_printed_nor_where_files_lie(tmp_path):
    mine = results('Ada', row(1, wrong(svg='<svg>secret drawing</svg>')))
    file = share_in(tmp_path, learner_in(tmp_path / 'a'), mine)
    content = file.read_text()
    assert 'strided' in content and 'def sizes(rows, chunks):' in content
    for private in ('printed by me', '/home/me', 'secret drawing', 'Linux'):
        assert private in json.dumps(mine.to_json()) and private not in content


def learner_in(clone, name='Ada'):
    (clone / 'exercises').mkdir(parents=True, exist_ok=True)
    return learner(clone, name)


@pytest.mark.skipif(os.name == 'nt', reason='rights of POSIX')
@pytest.mark.parametrize('mask', [0o077, 0o022, 0o002])
def test_shared_results_can_be_read_by_the_teacher_and_the_page_as_the_user_wishes(tmp_path, mask):
    before = os.umask(mask)
    try:
        write(tmp_path / 'page.html', 'x')
        shared = share_in(tmp_path, learner_in(tmp_path / 'a'), results('Ada'))
    finally:
        os.umask(before)
    assert (tmp_path / 'page.html').stat().st_mode & 0o777 == 0o666 & ~mask
    assert shared.stat().st_mode & 0o777 == 0o644


def test_one_file_a_learner_also_under_a_new_name_and_two_of_one_name_have_two(tmp_path):
    share = tmp_path / 'share'
    share.mkdir()
    share_in(share, learner_in(tmp_path / 'a', 'Ada'), results('Ada'))
    share_in(share, learner_in(tmp_path / 'a', 'Ada Lovelace'), results('Ada Lovelace'))
    assert [file.name.rpartition('-')[0] for file in share.iterdir()] == ['ada-lovelace']
    share_in(share, learner_in(tmp_path / 'b', 'Ada Lovelace'), results('Ada Lovelace'))
    share_in(share, learner_in(tmp_path / 'b', 'Ada Lovelace'), results('Ada Lovelace'))
    assert len(list(share.iterdir())) == 2


@given(st.text(st.characters(exclude_categories=('Cs',)), max_size=80))
def test_any_name_makes_a_file_name_that_every_system_takes(tmp_path_factory, name):
    clone = tmp_path_factory.mktemp('clone')
    try:
        who = learner_in(clone, name)
    except ValueError:
        assert not re.search(r'\w', name)
        return
    assert re.fullmatch(r'[\w-]+-[0-9a-f]{8}\.json', who.file_name) and len(who.file_name.encode()) < 255
    assert learner(clone) == who   # it is remembered


@pytest.mark.parametrize('content', [
    '', '[]', '{"name": 3, "id": "x"}', '{"name": "a", "id": "../../x"}', '{"name": "a"}'])
def test_a_broken_memory_of_the_name_begins_anew(tmp_path, content):
    (tmp_path / 'exercises').mkdir()
    (tmp_path / 'exercises/.learner.json').write_text(content)
    who = learner(tmp_path, 'Ada')
    assert who.name == 'Ada' and re.fullmatch('[0-9a-f]{8}', who.id) and learner(tmp_path) == who


def test_after_a_real_attempt_the_command_writes_page_and_data_and_shares_when_told_to(tmp_path):
    clone = copy_of_this_clone(tmp_path / 'my clone')
    share = tmp_path / 'class'
    share.mkdir()
    exercise = clone / 'exercises/01_microbatch.py'
    exercise.write_text(exercise.read_text(encoding='utf-8') + '\n# begun\n', encoding='utf-8')
    workshop(clone, 'check', '01', '--seed', '5')   # unsolved
    done = workshop(clone, 'report')
    assert done.returncode == 0, done.stderr
    assert not list(share.iterdir())
    page = Page((clone / 'results/report.html').read_text(encoding='utf-8')).read
    assert './workshop.py check 01 --seed 5' in page and 'has no body yet' in page
    data = Results.from_json(json.loads((clone / 'results/report.json').read_text(encoding='utf-8')))
    assert (data.rows[0].attempts, data.rows[0].done) == (1, False) and data.current.number == 1

    done = workshop(clone, 'report', '--share', str(share), '--name', 'Émilie\x1b[31m')
    assert done.returncode == 0 and '\x1b' not in done.stdout
    shared = [Results.from_json(json.loads(file.read_text(encoding='utf-8'))) for file in share.iterdir()]
    assert [each.name.startswith('Émilie') for each in shared] == [True]
    assert workshop(clone, 'report', '--share', str(share)).stdout.startswith('Émilie')   # the name is remembered

    elsewhere = workshop(clone, 'report', '--share', str(tmp_path / 'clas'))
    assert elsewhere.returncode == 2 and 'there is no folder' in elsewhere.stderr and not (tmp_path / 'clas').exists()
    assert workshop(clone, 'report', '--name', '...').returncode == 2
    assert workshop(clone, 'report', '--out', 'page.json').returncode == 2 and not (clone / 'page.json').exists()


def test_shared_results_are_replaced_as_a_whole(tmp_path):
    """A teacher who reads meanwhile never sees half a file."""
    who = learner_in(tmp_path / 'a')
    file = share_in(tmp_path, who, results('Ada', row(1, wrong())))
    with file.open() as reads:
        share_in(tmp_path, who, replace(results('Ada'), rows=[]))
        assert Results.from_json(json.load(reads)).rows
    assert not Results.from_json(json.loads(file.read_text())).rows
    assert not list(tmp_path.glob('.*')) and not list(tmp_path.glob('*.part'))
