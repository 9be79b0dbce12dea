"""Every exercise is its solution with the steps taken out, and has a title, hints and ten points."""

import ast
import os
import re
import subprocess
import sys

import pytest

from fewgpu.workshop.exercise import Exercise, all_exercises, find
from fewgpu.workshop.grading.grader import Hints, checks_of
from fewgpu.workshop.strip import strip

EXERCISES = all_exercises()
each_exercise = pytest.mark.parametrize('exercise', EXERCISES, ids=lambda exercise: exercise.name)


@each_exercise
def test_exercise_is_its_solution_with_the_steps_taken_out(exercise: Exercise) -> None:
    assert exercise.file.read_text(encoding='utf-8') == strip(exercise.solution.read_text(encoding='utf-8')), (
        f'run ./workshop.py strip {exercise.number:02}')


@each_exercise
def test_steps_are_numbered_from_one(exercise: Exercise) -> None:
    steps = re.findall(r'# STEP (\d+): ', exercise.solution.read_text(encoding='utf-8'))
    assert steps and steps == [str(number) for number in range(1, len(steps) + 1)]


@each_exercise
def test_unsolved_file_can_be_read_and_has_nothing_of_the_steps(exercise: Exercise) -> None:
    steps = re.findall(r'# STEP \d+: (.*?)# END', exercise.solution.read_text(encoding='utf-8'), re.DOTALL)
    text = exercise.file.read_text(encoding='utf-8')
    ast.parse(text)
    assert text.count('# TODO STEP ') == len(steps)
    code = {line for step in steps for line in step.splitlines()[1:] if line.strip() and line.strip()[0] != '#'}
    assert code and not code & set(re.sub(r'""".*?"""', '', text, flags=re.DOTALL).splitlines())


@pytest.mark.slow
@pytest.mark.parametrize('exercise', [exercise for exercise in EXERCISES if exercise.name != '09_mnist_gpipe'],
                         ids=lambda exercise: exercise.name)   # 09 is a script that trains: see test_scripts
@pytest.mark.parametrize('folder', ['exercises', 'solutions'])
def test_file_runs_by_hand_solved_or_not(exercise: Exercise, folder: str) -> None:
    environment = {**os.environ, 'PYTHONPATH': str(exercise.root / 'lib')}
    done = subprocess.run([sys.executable, exercise.root / folder / exercise.file.name], env=environment, text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0 and done.stdout and not done.stderr, done.stderr


@each_exercise
def test_exercise_has_a_title_and_a_time(exercise: Exercise) -> None:
    assert exercise.title and 5 <= exercise.minutes <= 90
    assert find(exercise.number) == find(f'{exercise.number:02}') == find(exercise.name) == exercise


@each_exercise
def test_grader_gives_ten_points_and_a_hint_for_every_check(exercise: Exercise) -> None:
    grader = exercise.grader()
    checks = checks_of(grader)
    assert sum(check.points for check in checks) == 10
    assert all(check.points > 0 for check in checks)
    assert len({check.id for check in checks}) == len(checks)
    for check in checks:
        hints = grader.HINTS[check.id]
        assert isinstance(hints, Hints) and hints.idea and hints.place and hints.outline
    for number, check in enumerate(checks):   # what a check builds upon comes before it
        assert set(check.after) <= {earlier.id for earlier in checks[:number]}


@each_exercise
def test_misconceptions_are_sentences(exercise: Exercise) -> None:
    for name, sentence in exercise.grader().MISCONCEPTIONS.items():
        assert re.fullmatch(r'[a-z0-9]+(-[a-z0-9]+)*', name), name
        assert len(sentence) > 20 and not re.search(r'[^.]\.$', sentence), name


def test_numbers_are_used_once_and_without_gaps() -> None:
    assert [exercise.number for exercise in EXERCISES] == list(range(1, len(EXERCISES) + 1))


def test_unknown_exercise_is_answered_with_the_choices() -> None:
    with pytest.raises(LookupError, match='there is no exercise 99: choose from 01'):
        find(99)


@pytest.mark.slow
def test_selfcheck_proves_that_every_exercise_fails_unsolved_and_passes_solved() -> None:
    root = EXERCISES[0].root
    done = subprocess.run([sys.executable, '-P', '-m', 'fewgpu.workshop', 'selfcheck'], cwd=root, text=True,
                          env={**os.environ, 'PYTHONPATH': str(root / 'lib')}, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stdout
    assert all(re.search(rf'{exercise.name} +0 of 10 +10 of 10', done.stdout) for exercise in EXERCISES), done.stdout
