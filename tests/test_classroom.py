"""`./workshop.py class FOLDER`: who is where, what they share, and that no file in the folder can do harm."""

import json
import os
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.workshop.runner.class_page import class_page
from fewgpu.workshop.runner.results import Results
from fewgpu.workshop.runner.roster import MANY_ATTEMPTS, Roster, ago, as_data, read, wants_help
from tests.learners import NOON, ROOT, at, results, right, row, workshop, wrong
from tests.test_report_page import OURS, Page, anybodys

TITLES = {1: 'one', 2: 'two'}
KEYS = st.text() | st.sampled_from(['format', 'version', 'name', 'exercises', 'last', 'outcomes'])
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=12)


def share(folder, *all_of_them: Results):
    for number, each in enumerate(all_of_them):
        (folder / f'{number}.json').write_text(json.dumps(each.to_json()), encoding='utf-8')
    return folder


def roster_of(folder, *all_of_them: Results) -> Roster:
    return read(share(folder, *all_of_them), TITLES)


def names(roster: Roster) -> list[str]:
    return [learner.name for learner in roster.learners]


def test_where_everybody_is(tmp_path):
    roster = roster_of(
        tmp_path, results('Grace', row(1, wrong(), minutes=5, attempts=2)), results('Emmy', row(1), row(2)),
        results('Ada', row(1, right(), minutes=1), row(2, wrong(), minutes=9, attempts=MANY_ATTEMPTS)))
    ada, emmy, grace = roster.learners
    assert names(roster) == ['Ada', 'Emmy', 'Grace']
    assert (ada.current.number, grace.current.number, emmy.current) == (2, 1, None)
    assert (ada.done, ada.earned, ada.last_at) == (1, 10, at(9))
    assert [roster.done(number) for number in (1, 2)] == [1, 0]
    assert [roster.begun(number) for number in (1, 2)] == [1, 1]
    assert [wants_help(learner) for learner in roster.learners] == [True, False, False]


def test_who_solved_the_exercise_tried_last_is_not_stuck_whatever_failed_before(tmp_path):
    learner, = roster_of(tmp_path, results('Ada', row(1, wrong(), minutes=1), row(2, right(), minutes=2))).learners
    assert learner.current is None and learner.last_at == at(2)


def test_times_of_different_zones_are_compared_as_times(tmp_path):
    early, late = row(1, wrong(), minutes=0), row(2, right(), minutes=60)
    early.last_at = '2026-03-01T14:30:00+05:00'   # 9:30 in the zone of the other, whose text is smaller
    learner, = roster_of(tmp_path, results('Ada', early, late)).learners
    assert learner.current is None


def test_what_several_are_stuck_on_comes_first_and_what_one_is_or_has_yet_to_write_does_not(tmp_path):
    def stuck(name: str, number: int, misconception: str) -> Results:
        return results(name, row(number, wrong(misconception, message=f'About {misconception}.')))
    roster = roster_of(
        tmp_path, stuck('a', 1, 'strided'), stuck('b', 2, 'empty'), stuck('c', 2, 'empty'), stuck('d', 2, 'empty'),
        stuck('e', 1, 'strided'), stuck('f', 1, 'empty'), stuck('g', 1, 'unsolved'), stuck('h', 1, 'unsolved'),
        results('i', row(1, right())))
    assert [(one.exercise, one.misconception, one.learners, one.message) for one in roster.common()] == [
        (2, 'empty', ('b', 'c', 'd'), 'About empty.'), (1, 'strided', ('a', 'e'), 'About strided.')]


def test_people_of_one_name_are_told_apart_and_of_two_files_of_one_learner_the_newer_counts(tmp_path):
    roster = roster_of(
        tmp_path, results('Ada', id='1111aaaa'), results('ada', id='2222bbbb'), results('Emmy', id='3333cccc'),
        results('Emmy N.', row(1, right()), id='3333cccc', written=7), results('Emmy', id='3333cccc', written=3))
    assert names(roster) == ['Ada (1111)', 'ada (2222)', 'Emmy N.']
    assert sorted((each.file, each.why) for each in roster.left_out) == [
        ('2.json', 'older than 3.json, of the same learner'), ('4.json', 'older than 3.json, of the same learner')]


def other_version(data):
    return {**data, 'version': 99}


def wrong_number(data):
    data['exercises'][0]['best'] = '10'
    return data


def half_a_point(data):
    data['exercises'][0]['best'] = 1.5
    return data


def true_number(data):
    data['exercises'][0]['best'] = True
    return data


def endless_number(data):
    data['exercises'][0]['attempts'] = 10**30
    return data


def no_verdict(data):
    data['exercises'][0]['last'] = {'outcomes': [{}]}
    return data


@pytest.mark.parametrize('spoil', [other_version, wrong_number, half_a_point, true_number, endless_number, no_verdict])
def test_results_that_are_not_as_the_kit_writes_them_are_named_and_the_others_count(tmp_path, spoil):
    good = results('Ada', row(1, wrong()))
    other = results('Emmy', row(1, wrong()))
    (tmp_path / 'spoilt.json').write_text(json.dumps(spoil(json.loads(json.dumps(other.to_json())))))
    roster = roster_of(tmp_path, good)
    assert names(roster) == ['Ada'] and [each.file for each in roster.left_out] == ['spoilt.json']


@pytest.mark.parametrize('content', [
    b'', b'{"a": [', b'[1, 2]', b'"text"', b'\xff\xfe\x00', b'[' * 100_000, b'9' * 5000, b'NaN', b'null'])
def test_broken_and_foreign_files_are_named_and_the_others_count(tmp_path, content):
    (tmp_path / 'odd.json').write_bytes(content)
    (tmp_path / 'notes.txt').write_bytes(content)
    (tmp_path / '.hidden.json').write_bytes(content)
    (tmp_path / 'folder.json').mkdir()
    roster = roster_of(tmp_path, results('Ada'))
    assert names(roster) == ['Ada'] and [each.file for each in roster.left_out] == ['folder.json', 'odd.json']


@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='pipes that are files are of POSIX')
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / 'odd.json')
    assert [each.file for each in roster_of(tmp_path, results('Ada')).left_out] == ['odd.json']


@given(JSON, st.data())
def test_whatever_stands_in_a_file_there_is_a_page(tmp_path_factory, anything, data):
    """Any JSON, in place of any part of good results."""
    good = json.loads(json.dumps(results('Ada', row(1, wrong(), attempts=9), row(2, right())).to_json()))
    place, key = data.draw(st.sampled_from(list(_places(good))))
    place[key] = anything
    folder = tmp_path_factory.mktemp('class')
    (folder / 'odd.json').write_text(json.dumps(good))
    roster = roster_of(folder, results('Emmy'))
    assert 'Emmy' in ' '.join(names(roster)) and len(roster.learners) + len(roster.left_out) == 2
    assert 'Emmy' in class_page(roster, NOON) and json.dumps(as_data(roster))


def _places(data):
    """Every part of nested data, as (what holds it, its key)."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield data, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


@given(st.lists(anybodys(), max_size=4))
def test_no_text_of_a_learner_becomes_an_element_of_the_page(tmp_path_factory, learners):
    folder = tmp_path_factory.mktemp('class')
    for number, each in enumerate(learners):
        each.id = f'{number:08x}'
    page = Page(class_page(roster_of(folder, *learners), NOON))
    assert page.tags <= OURS and 'src' not in dict(page.attributes)
    assert not [name for name, _ in page.attributes if name.startswith('on')]


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_longer_ago_is_never_said_to_be_less(minutes, more):
    def said(minutes: int) -> int:
        text = ago(at(0), NOON + timedelta(minutes=minutes))
        number, _, unit = text.removesuffix(' ago').partition(' ')
        return 0 if text == 'now' else int(number) * {'min': 1, 'h': 60, 'd': 24 * 60}[unit]
    assert said(minutes) <= said(minutes + more)
    assert 0 <= minutes - said(minutes) < (24 * 60 if minutes >= 24 * 60 else 60)


def test_a_clock_that_is_ahead_counts_as_now_and_no_time_is_no_text():
    assert ago(at(10), NOON) == 'now' and ago(None, NOON) == '' and ago('yesterday', NOON).endswith(' d ago')


def test_the_command_shows_the_class_in_80_columns_and_writes_page_and_data(tmp_path):
    folder = tmp_path / 'class'
    folder.mkdir()
    long = 'a-name-that-is-as-long-as-names-may-be-and-somewhat-longer-than-that'
    misconception = 'a-misconception-with-a-very-long-name'
    last = wrong(misconception, message=f'\x1b[31m{long}')
    beginnings = 'A\x1b]0;x\x07', ':smile:', '[red]'
    share(folder, *(results(f'{beginning}{long}', row(1, last, attempts=12345)) for beginning in beginnings))
    (folder / 'broken.json').write_text('{')
    page, data = tmp_path / 'class.html', tmp_path / 'class.json'
    done = workshop(ROOT, 'class', str(folder), '--html', str(page), '--json', str(data))
    assert done.returncode == 0, done.stderr
    assert '\x1b' not in done.stdout and '\x07' not in done.stdout
    assert all(len(line) <= 80 or str(tmp_path) in line for line in done.stdout.splitlines())
    assert ':smile:' in done.stdout and '[red]' in done.stdout and 'broken.json: broken in line 1' in done.stdout
    assert '3 are stuck on exercise 01' in done.stdout and '! 12345' in done.stdout
    assert misconception in Page(page.read_text(encoding='utf-8')).read
    written = json.loads(data.read_text(encoding='utf-8'))
    assert [each['stuck']['misconception'] for each in written['learners']] == [misconception] * 3
    shown = workshop(ROOT, 'class', str(folder), '--json', '-')
    assert json.loads(shown.stdout) == written


def test_an_empty_folder_says_how_to_share_and_one_that_is_not_there_is_a_sentence(tmp_path):
    done = workshop(ROOT, 'class', str(tmp_path))
    assert done.returncode == 0 and 'report --share' in done.stdout
    done = workshop(ROOT, 'class', str(tmp_path / 'nowhere'), COLUMNS='300')
    assert done.returncode == 2 and 'nowhere' in done.stderr and 'Traceback' not in done.stderr
