"""The commands that learners type, in a small clone: list, check, hint, solution, reset, selfcheck, strip."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fewgpu.workshop.runner import whole
from fewgpu.workshop.runner.progress import Progress, file_of
from tests.course import SLEEPS, SOLUTIONS, SQUARE, Course

posix = pytest.mark.skipif(os.name == 'nt', reason='sends POSIX signals')
proc = pytest.mark.skipif(not os.path.isdir('/proc/self'), reason='looks for processes as Linux lists them')


@pytest.fixture
def course(tmp_path):
    return Course.make(tmp_path / 'clone')


def test_a_learner_goes_from_the_first_exercise_to_the_last(course):
    listed = course.run('list')
    assert listed.returncode == 0 and '0 of 2 done' in listed.stdout and 'check 01' in listed.stdout
    assert re.search(r'01 +twice as much \[no markup\] +5 +next', listed.stdout)

    unsolved = course.run('check')
    assert unsolved.returncode == 1 and unsolved.stdout.splitlines()[0] == 'Checking exercises/01_double.py'
    assert 'This step is still to be written' in unsolved.stdout and '0 of 10 points.' in unsolved.stdout

    course.exercise(1).file.write_text(SQUARE)
    wrong = course.run('check', '--seed', '5')
    assert wrong.returncode == 1
    for part in ('X times x is taken for twice x', 'double(1)', 'yours     1', 'x----x', 'exercises/01_double.py:1',
                 '--seed 5', 'It builds upon check 1.'):
        assert part in wrong.stdout
    assert re.search(r'01 .* 0 of 10 +next', course.run('list').stdout)

    course.solve(1)
    right = course.run('check')
    assert right.returncode == 0 and 'Solved! (attempt 2)' in right.stdout and 'a figure: 42' in right.stdout
    assert 'Next: half of it (about 10 minutes)' in right.stdout and 'exercises/02_half.py' in right.stdout

    course.solve(2)
    last = course.run('check')
    assert last.returncode == 0 and last.stdout.startswith('Checking exercises/02_half.py')
    assert 'All exercises are done' in last.stdout
    assert '2 of 2 done, 20 points.' in course.run('list').stdout
    assert course.run('check').returncode == 0


def test_another_file_is_checked_but_not_noted_down(course, tmp_path):
    mine = tmp_path / ('m' * 80) / 'mine.py'   # longer than the terminal is wide
    mine.parent.mkdir()
    mine.write_text(course.exercise(1).solution.read_text())
    done = course.run('check', '01', '--file', str(mine))
    assert done.returncode == 0 and done.stdout.startswith(f'Checking {mine}')
    assert Progress.load(course.root) == Progress()


def test_json_is_all_that_is_printed_where_it_goes_to_the_output(course, tmp_path):
    course.solve(1)
    done = course.run('check', '01', '02', '--json', '-', '--seed', '3')
    assert done.returncode == 1
    assert [(each['name'], each['passed'], each['seed']) for each in json.loads(done.stdout)] == [
        ('01_double', True, 3), ('02_half', False, 3)]
    assert '1 of 2 exercises are right.' in done.stderr
    course.run('check', '01', '--json', str(tmp_path / 'verdict.json'))
    assert json.loads((tmp_path / 'verdict.json').read_text())[0]['earned'] == 10


@pytest.mark.parametrize('arguments, said', [
    (['check', '07'], 'there is no exercise 07: choose from 01, 02'),
    (['check', '01', '--file', 'nowhere.py'], 'there is no file nowhere.py'),
    (['check', '--file', 'workshop.py'], 'there is no exercise workshop.py: choose from 01, 02'),
    (['check', '01', '02', '--file', 'solutions/01_double.py'], '--file is one file'),
    (['hint', 'x'], 'choose from 01, 02'),
    (['hint', '01', '--check', '9'], 'exercise 01 has 2 checks'), (['reset', '9'], 'choose from 01, 02')])
def test_what_cannot_be_done_is_a_sentence(course, arguments, said):
    done = course.run(*arguments)
    assert done.returncode == 2 and 'Traceback' not in done.stderr
    assert said in re.sub(r'\W*\n\W*', ' ', done.stderr)


def test_a_missing_exercise_says_how_to_get_it_back(course):
    course.exercise(1).file.unlink()
    done = course.run('check', '01')
    assert done.returncode == 2 and 'reset 01' in done.stdout and 'Traceback' not in done.stderr
    assert course.run('reset', '01').returncode == 0 and course.exercise(1).file.is_file()


def test_a_verdict_is_shown_also_where_it_cannot_be_noted_down(course):
    file_of(course.root).mkdir()
    course.solve(1)
    done = course.run('check', '01')
    assert done.returncode == 0 and '10 of 10 points.' in done.stdout and 'could not be noted down' in done.stdout


def test_a_broken_progress_is_kept_aside_and_said(course):
    file_of(course.root).write_text('{')
    assert 'progress.broken-1.json' in course.run('list').stdout


@pytest.mark.parametrize('command', ['list', '--help', 'check --help', 'hint --help'])
def test_torch_is_not_imported_where_nothing_is_computed(course, command):
    lines = ('import sys; from fewgpu.workshop.__main__ import main\ntry:\n    main()\n'
             'finally:\n    print(sorted({"torch", "numpy", "matplotlib"} & set(sys.modules)))')
    done = subprocess.run([sys.executable, '-c', lines, *command.split()], env=course.environment, cwd=course.root,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == '[]'


# Hints and the solution


def test_every_call_shows_one_more_step_and_the_failing_case_is_one(course):
    course.exercise(1).file.write_text(SQUARE)
    course.run('check', '01')
    steps = {1: 'Think of x + x.', 2: '`double`, after STEP 1.', 3: 'double(1)', 4: 'return x, and\n     x once more'}
    for call in (1, 2, 3, 4, 5):
        shown = course.run('hint', '01').stdout
        assert [number for number, text in steps.items() if text in shown] == list(range(1, min(call, 4) + 1))
    assert 'solution 01 --anyway' in shown
    assert Progress.load(course.root).of('01_double').shown == {'double': 4}

    course.exercise(1).file.write_text(SQUARE.replace('x * x', '2 * x').replace('double(double(x))', 'double(x)'))
    later = time.time() + 60
    os.utime(course.exercise(1).file, (later, later))
    assert 'has changed since' in course.run('hint', '01').stdout
    course.run('check', '01')
    other = course.run('hint', '01').stdout
    assert 'Twice, twice.' in other and 'Think of' not in other


def test_before_the_first_check_there_are_hints_without_a_case(course):
    shown = [course.run('hint').stdout for _ in range(3)]
    assert 'was not checked yet' in shown[0] and 'double what' not in shown[2] and 'x once more' in shown[2]


def test_a_file_that_python_cannot_read_needs_no_hint(course):
    course.exercise(1).file.write_text('def double(x:\n')
    assert course.run('check', '01').returncode == 1
    assert 'Python cannot read the file' in course.run('hint', '01').stdout
    assert Progress.load(course.root).of('01_double').hints == 0


def test_the_solution_is_for_those_who_have_solved_it_or_want_it_anyway(course):
    refused = course.run('solution', '01')
    assert refused.returncode == 1 and 'return 2 * x' not in refused.stdout and '--anyway' in refused.stdout
    anyway = course.run('solution', '01', '--anyway')
    assert anyway.returncode == 0 and anyway.stdout == course.exercise(1).solution.read_text()
    assert Progress.load(course.root).of('01_double').solution_seen
    course.solve(2)
    course.run('check', '02')
    assert course.run('solution', '02').stdout == SOLUTIONS['02_half']
    assert not Progress.load(course.root).of('02_half').solution_seen


# Nothing that a learner wrote is lost


def test_reset_keeps_a_copy_each_time_and_changes_nothing_that_is_new(course):
    file = course.exercise(1).file
    handed_out = file.read_bytes()
    assert 'nothing to reset' in course.run('reset', '01').stdout
    for number, mine in enumerate([b'one', b'two', b'\xff\x00'], start=1):
        file.write_bytes(mine)
        assert f'01_double.before-reset-{number}.py' in course.run('reset', '01').stdout
        assert file.read_bytes() == handed_out
    kept = [file.with_name(f'01_double.before-reset-{number}.py').read_bytes() for number in (1, 2, 3)]
    assert kept == [b'one', b'two', b'\xff\x00']


@pytest.mark.skipif(os.name == 'nt', reason='pipes and links of POSIX')
@pytest.mark.parametrize('make', [Path.mkdir, os.mkfifo, lambda file: file.symlink_to(file)], ids=['folder', 'pipe', 'loop'])
def test_what_is_no_file_is_a_sentence_in_reset_and_check(course, make):
    file = course.exercise(1).file
    file.unlink()
    make(file)
    for command in ('reset', 'check'):
        done = course.run(command, '01')
        assert done.returncode and 'Traceback' not in done.stdout + done.stderr
        assert re.search('no\\s+file', done.stdout) and file.is_symlink() + file.is_dir() + file.is_fifo() == 1


@pytest.mark.parametrize('change', [
    lambda entry: entry.update(last_at='yesterday'),
    lambda entry: entry['last'].update(outcomes=None),
    lambda entry: entry['last']['outcomes'][0].update(points='x'),
    lambda entry: entry['last']['outcomes'][0].update(figures=None),
    lambda entry: entry['last']['outcomes'][0].update(id='of-an-older-kit'),
], ids=['time', 'outcomes', 'points', 'figures', 'id'])
def test_progress_with_odd_values_keeps_no_command_from_working(course, change):
    course.run('check', '01')
    data = json.loads(file_of(course.root).read_text())
    change(data['exercises']['01_double'])
    file_of(course.root).write_text(json.dumps(data))
    for command in (['list'], ['hint', '01'], ['report']):
        done = course.run(*command)
        assert done.returncode == 0 and 'Traceback' not in done.stdout + done.stderr, done.stderr


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='a disk that is always full: there is none here')
def test_full_disk_is_a_sentence(course):
    with open('/dev/full', 'w') as full:
        done = subprocess.run(course.command('list'), cwd=course.root, env=course.environment, stdout=full,
                              stderr=subprocess.PIPE, encoding='utf-8', timeout=120)
    assert done.returncode == 1 and 'the disk is full' in done.stderr and 'Traceback' not in done.stderr


def test_a_reset_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / 'mine.py'
    file.write_text('mine')

    def full(*_: object) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(whole, '_replace', full)
    with pytest.raises(OSError, match='No space'):
        whole.write(file, 'new')
    assert file.read_text() == 'mine' and list(tmp_path.iterdir()) == [file]


def test_strip_makes_the_exercises_and_keeps_what_git_does_not_have(course):
    file, solution = course.exercise(1).file, course.exercise(1).solution
    assert course.run('strip').stdout.count('is up to date') == 2
    file.write_text('mine')
    solution.write_text(SOLUTIONS['01_double'].replace('twice x', 'two times x'))
    done = course.run('strip', '01')
    assert done.returncode == 0 and 'before-reset-1.py' in done.stdout
    assert 'TODO STEP 1: two times x' in file.read_text()
    assert file.with_name('01_double.before-reset-1.py').read_text() == 'mine'
    solution.write_text('# STEP 1: without an end')
    assert course.run('strip', '01').returncode == 1 and 'TODO STEP 1: two times x' in file.read_text()


# Selfcheck


@pytest.mark.slow
def test_selfcheck_passes_a_course_that_is_in_order_and_does_not_look_at_what_learners_wrote(course):
    course.solve(1)
    done = course.run('selfcheck', '--seed', '4')
    assert done.returncode == 0 and 'seed 4' in done.stdout
    for name in SOLUTIONS:
        assert re.search(rf'{name} +0 of 10 +10 of 10', done.stdout)
    assert Progress.load(course.root) == Progress()


@pytest.mark.slow
@pytest.mark.parametrize('file, old, new, said', [
    ('solutions/02_half.py', 'return x / 2', 'return x // 2', 'its solution fails'),
    ('solutions/02_half.py', '# STEP 1: halve x', '# step', 'it passes as it is handed out'),
    ('solutions/02_half.py', '(about 10 minutes)', '', 'has no title'),
    ('solutions/02_half.py', '    # END', '', 'STEP 1 of the solution has no END'),
    ('lib/fewgpu/workshop/graders/02_half.py', 'points=10', 'points=9', 'its checks have 9 points, and not 10'),
    ('lib/fewgpu/workshop/graders/02_half.py', "'half': Hints", "'other': Hints", 'there is no hint for half'),
    ('lib/fewgpu/workshop/graders/02_half.py', 'seconds=90', "after=['x']", 'half builds upon what is not there: x'),
    ('lib/fewgpu/workshop/graders/02_half.py', 'HINTS', 'import nothing\nHINTS', "No module named 'nothing'"),
])
def test_selfcheck_finds_what_is_not_in_order(course, file, old, new, said):
    path = course.root / file
    assert old in path.read_text()
    if 'points' in old:   # one of them, so that each is seen
        assert course.run('selfcheck', '02').returncode == 0
    path.write_text(path.read_text().replace(old, new))
    done = course.run('selfcheck', '02')
    assert done.returncode == 1 and '1 of 1 exercises are not in order' in done.stdout
    assert said in ' '.join(done.stdout.split()) and 'Traceback' not in done.stderr


# Nothing is left behind


@posix
@proc
@pytest.mark.parametrize('number, code', [('SIGINT', 130), ('SIGTERM', 143), ('SIGHUP', 129), ('SIGKILL', -9)])
def test_whoever_ends_a_check_ends_what_it_started(course, number, code):
    course.exercise(2).file.write_text(SLEEPS)
    checking = course.start('check', '02')
    assert course.wait_for(True)
    checking.send_signal(getattr(signal, number))
    assert checking.wait(timeout=10) == code
    assert course.wait_for(False) == []
    assert Progress.load(course.root).of('02_half').attempts == 0
