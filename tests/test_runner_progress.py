"""What a learner has done: nothing of it is lost, whoever writes at the same time and whatever stands in the file."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.workshop.grading.verdict import BLOCKED, FAILED, PASSED, Line, Outcome, Verdict
from fewgpu.workshop.runner.progress import Entry, Progress, file_of, record, record_hint, record_solution

ROOT = Path(__file__).resolve().parents[1]

outcomes = st.builds(
    Outcome, id=st.sampled_from('abc'), title=st.text(), points=st.integers(0, 5),
    status=st.sampled_from([PASSED, FAILED, BLOCKED]), misconception=st.text(), message=st.text(), case=st.text(),
    lines=st.lists(st.builds(Line, st.integers(1), st.text(), st.text()), max_size=2), picture=st.text(), svg=st.text(),
    figures=st.dictionaries(st.text(), st.text(), max_size=2), seconds=st.floats(0, 9))
verdicts = st.builds(
    Verdict, exercise=st.integers(1, 99), name=st.sampled_from(['01_a', '02_b']), file=st.text(), seed=st.integers(0),
    outcomes=st.lists(outcomes, max_size=3), printed=st.text(), seconds=st.floats(0, 9))


@pytest.fixture
def root(tmp_path):
    (tmp_path / 'exercises').mkdir()
    return tmp_path


def verdict(earned: int = 3, *, name: str = '01_a') -> Verdict:
    other = Outcome('two', 'the other law', 10 - earned, PASSED if earned == 10 else FAILED)
    return Verdict(1, name, 'exercises/01_a.py', 7, [Outcome('one', 'the one law', earned), other])


@given(st.lists(verdicts, min_size=1, max_size=6))
def test_what_is_recorded_is_read_again(tmp_path_factory, tried):
    root = tmp_path_factory.mktemp('clone')
    (root / 'exercises').mkdir()
    for each in tried:
        record(root, each)
    progress = Progress.load(root)
    assert progress.note == ''
    for name in {each.name for each in tried}:
        mine, entry = [each for each in tried if each.name == name], progress.of(name)
        assert entry.attempts == len(mine)
        assert entry.best == max(each.earned for each in mine)
        assert entry.done == any(each.passed for each in mine)
        assert entry.last == mine[-1] and entry.last_at


def test_what_was_never_tried_is_empty(root):
    assert Progress.load(root) == Progress()
    assert Progress.load(root).of('01_a') == Entry()


def test_solved_once_is_solved_for_good(root):
    first = record(root, verdict(10)).of('01_a').passed_at
    entry = record(root, verdict(3)).of('01_a')
    assert (entry.best, entry.passed_at, entry.last.earned) == (10, first, 3)


def test_hints_never_go_back_and_are_counted_by_check(root):
    for check, step in [('one', 1), ('one', 3), ('one', 2), ('two', 1)]:
        entry = record_hint(root, '01_a', step, check).of('01_a')
    assert entry.shown == {'one': 3, 'two': 1} and entry.hints == 4


def test_a_solution_that_is_looked_at_after_solving_it_is_no_peeking(root):
    record(root, verdict(10))
    assert not record_solution(root, '01_a').of('01_a').solution_seen
    assert record_solution(root, '02_b').of('02_b').solution_seen


RECORDS = '''
import sys
from pathlib import Path
from fewgpu.workshop.grading.verdict import Outcome, Verdict
from fewgpu.workshop.runner.progress import record
name, times = sys.argv[2], int(sys.argv[3])
print('begun', flush=True)
for earned in range(times):
    record(Path(sys.argv[1]), Verdict(1, name, '', 0, [Outcome('one', 'law' * 500, earned)]))
'''


def recorder(root: Path, name: str, times: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, '-c', RECORDS, str(root), name, str(times)],
                            env={**os.environ, 'PYTHONPATH': str(ROOT / 'lib')}, stdout=subprocess.PIPE)


def test_windows_that_write_at_once_lose_nothing(root):
    names = ['01_a', '01_a', '02_b', '03_c']
    writers = [recorder(root, name, 25) for name in names]
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 4
    progress = Progress.load(root)
    assert {name: progress.of(name).attempts for name in names} == {'01_a': 50, '02_b': 25, '03_c': 25}
    assert sorted(path.name for path in (root / 'exercises').iterdir()) == ['.progress.lock', 'progress.json']


@pytest.mark.skipif(sys.platform == 'win32', reason='kills as POSIX does')
def test_whoever_is_killed_while_writing_leaves_a_whole_file_and_no_lock(root):
    for _ in range(5):
        writer = recorder(root, '01_a', 10**6)
        writer.stdout.readline()
        time.sleep(random.uniform(0.01, 0.1))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        before = Progress.load(root)
        assert before.note == ''
        assert record(root, verdict()).of('01_a').attempts == before.of('01_a').attempts + 1


@pytest.mark.parametrize('text', [
    '', '{', '[]', 'null', '\x00', '[' * 100_000, '{"version": 2, "exercises": {}}', '{"version": 1}',
    '{"version": 1, "exercises": {"01_a": 3}}', '{"version": 1, "exercises": {"01_a": {"best": "many"}}}'])
def test_a_broken_file_is_kept_aside_and_said(root, text):
    for number in (1, 2):
        file_of(root).write_text(text)
        progress = Progress.load(root)
        assert progress.entries == {} and f'progress.broken-{number}.json' in progress.note
        assert file_of(root).with_name(f'progress.broken-{number}.json').read_text() == text
        assert not file_of(root).exists()
    file_of(root).write_text(text)
    noted = record(root, verdict())
    assert 'progress.broken-3.json' in noted.note and noted.of('01_a').attempts == 1
    assert Progress.load(root).note == ''


def test_a_verdict_of_another_version_of_the_kit_costs_no_points(root):
    record(root, verdict(10))
    data = json.loads(file_of(root).read_text())
    data['exercises']['01_a']['last']['outcomes'][0]['from_the_future'] = 1
    file_of(root).write_text(json.dumps(data))
    entry = Progress.load(root).of('01_a')
    assert entry.done and entry.best == 10 and entry.last is None


def test_a_file_that_cannot_be_written_is_an_error_and_one_that_cannot_be_read_is_said(root):
    file_of(root).mkdir()
    assert 'cannot be read' in Progress.load(root).note
    with pytest.raises(OSError):
        record(root, verdict())


def test_a_file_that_is_newer_than_the_last_attempt_is_noticed(root):
    file = root / 'exercises/01_a.py'
    file.write_text('')
    entry = record(root, verdict()).of('01_a')
    assert not entry.is_older_than(file)
    assert replace(entry, last_at='2020-01-01T00:00:00+00:00').is_older_than(file)
