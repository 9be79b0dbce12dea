"""Graders can be trusted: every right answer of the bank passes, every wrong one is caught and named."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fewgpu.workshop.exercise import Exercise, all_exercises
from fewgpu.workshop.grading.grade import grade
from fewgpu.workshop.grading.known import KNOWN
from fewgpu.workshop.grading.verdict import Verdict
from tests.answers import BANK, Answer, all_answers
from tests.forked import quick_popen

ANSWERS, EXERCISES = all_answers(), all_exercises()
SEED = int(os.environ.get('FEWGPU_SEED', 1))   # a run that fails shall fail again; with FEWGPU_SEED=2 it tries other cases


@pytest.fixture(scope='module')
def verdicts(tmp_path_factory: pytest.TempPathFactory,
             request: pytest.FixtureRequest) -> Iterator[dict[Answer, Future[Verdict]]]:
    """Of all answers that are asked for, graded side by side; at the end comes the score."""
    asked = {item.callspec.params['answer'] for item in request.session.items
             if getattr(item, 'module', None) is sys.modules[__name__]
             and 'answer' in getattr(item, 'callspec', Empty).params}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        futures = {answer: pool.submit(grade_answer, answer, tmp_path_factory.mktemp('bank'))
                   for answer in ANSWERS if answer in asked}
        yield futures
        pool.shutdown(cancel_futures=True)
    with request.config.pluginmanager.getplugin('capturemanager').global_and_fixture_disabled():
        print(f'\n{score(futures)}')


class Empty:
    params: dict = {}


def grade_answer(answer: Answer, folder: Path) -> Verdict:
    file = folder / f'{answer.exercise.name}.py'
    file.write_text(answer.text(), encoding='utf-8')
    return grade(answer.exercise, file, seed=SEED, popen=quick_popen)


def score(futures: dict[Answer, Future[Verdict]]) -> str:
    """One line a side: how many there are, and how many were judged rightly."""
    done = {answer: future.result() for answer, future in futures.items() if future.done() and not future.cancelled()}
    right = [verdict.passed for answer, verdict in done.items() if answer.is_right]
    wrong = [named(verdict) == answer.misconception for answer, verdict in done.items() if not answer.is_right]
    return (f'bank: {sum(right)} of {len(right)} right answers pass, '
            f'{sum(wrong)} of {len(wrong)} wrong ones are caught and named')


def named(verdict: Verdict) -> str:
    """The misconception of the first check that fails."""
    return verdict.first_failure.misconception if verdict.first_failure else ''


def explained(verdict: Verdict) -> str:
    """For a test that fails: what the verdict says, and how to repeat it."""
    return f'seed {verdict.seed}: ' + '\n'.join(f'{each.id} {each.status} {each.misconception} {each.message}\n{each.case}'
                                                for each in verdict.outcomes if not each.passed)


@pytest.mark.slow
@pytest.mark.parametrize('answer', [answer for answer in ANSWERS if answer.is_right], ids=str)
def test_right_answers_pass_whatever_they_look_like(answer: Answer, verdicts: dict[Answer, Future[Verdict]]) -> None:
    verdict = verdicts[answer].result()
    assert verdict.passed, explained(verdict)


@pytest.mark.slow
@pytest.mark.parametrize('answer', [answer for answer in ANSWERS if not answer.is_right], ids=str)
def test_wrong_answers_are_caught_and_named(answer: Answer, verdicts: dict[Answer, Future[Verdict]]) -> None:
    verdict = verdicts[answer].result()
    assert not verdict.passed
    assert named(verdict) == answer.misconception, explained(verdict)


@pytest.mark.parametrize('exercise', EXERCISES, ids=lambda exercise: exercise.name)
def test_bank_of_every_exercise_is_large_enough_and_knows_every_misconception(exercise: Exercise) -> None:
    answers = [answer for answer in ANSWERS if answer.exercise == exercise]
    own = exercise.grader().MISCONCEPTIONS
    wrong = Counter(answer.misconception for answer in answers if not answer.is_right)
    assert sum(wrong[misconception] for misconception in own) >= 6
    assert sum(answer.is_right for answer in answers) >= 3
    assert wrong.keys() <= own.keys() | KNOWN.keys()
    assert own.keys() <= wrong.keys()
    assert not own.keys() & KNOWN.keys()


def test_bank_has_answers_to_exercises_only() -> None:
    assert {folder.name for folder in BANK.iterdir() if folder.is_dir()} == {exercise.name for exercise in EXERCISES}
