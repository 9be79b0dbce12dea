"""`check(1)` in a notebook: the verdict as HTML, and a stop that leaves nothing behind."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fewgpu.workshop.runner.progress import Progress
from tests.course import SLEEPS, SQUARE, Course

CALL = 'from fewgpu.workshop import check\nresult = check({})\nresult'


@pytest.fixture
def course(tmp_path):
    return Course.make(tmp_path / 'clone')


@pytest.fixture
def kernel(course) -> Iterator:
    from jupyter_client.manager import KernelManager
    manager = KernelManager(kernel_name='python3')
    manager.start_kernel(env=course.environment, cwd=str(course.root))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(client, code: str, on_first=lambda: None) -> list[tuple[str, dict]]:
    """What a cell shows: (kind, content) of its messages."""
    shown: list[tuple[str, dict]] = []

    def note(message: dict) -> None:
        kind = message['msg_type']
        if kind in ('display_data', 'update_display_data', 'execute_result', 'stream', 'error'):
            shown.append((kind, message['content']))
            if len(shown) == 1:
                on_first()

    client.execute_interactive(code, output_hook=note, timeout=60)
    return shown


@pytest.mark.slow
def test_a_cell_shows_the_verdict_once_and_keeps_it_up_to_date(course, kernel):
    course.exercise(1).file.write_text(SQUARE)
    shown = outputs(kernel[1], CALL.format(1))
    kinds = [kind for kind, _ in shown]
    assert kinds[0] == 'display_data' and set(kinds[1:]) == {'update_display_data'}
    html = shown[-1][1]['data']['text/html']
    for part in ('exercises/01_double.py', 'X times x is taken for twice x', 'data:image/svg+xml',
                 'twice as much [no markup]', 'It builds upon check 1.', '0 of 10 points.'):
        assert part in html
    assert Progress.load(course.root).of('01_double').attempts == 1
    said = outputs(kernel[1], 'print(bool(result), result.verdict.earned, result.verdict.name)')
    assert said[0][1]['text'] == 'False 0 01_double\n'


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir('/proc/self'), reason='looks for processes as Linux lists them')
@pytest.mark.parametrize('how', ['interrupt_kernel', 'restart_kernel'])
def test_a_cell_that_is_stopped_leaves_nothing_behind(course, kernel, how):
    course.exercise(2).file.write_text(SLEEPS)
    manager, client = kernel
    client.execute(CALL.format(2))
    assert course.wait_for(True)
    if how == 'interrupt_kernel':
        manager.interrupt_kernel()
    else:
        manager.restart_kernel(now=True)
    assert course.wait_for(False) == []
    assert Progress.load(course.root).of('02_half').attempts == 0


def test_in_plain_python_it_is_shown_as_in_the_terminal(course):
    course.solve(1)
    code = CALL.format('"01"') + '\nprint(repr(result))'
    done = subprocess.run([sys.executable, '-c', code], env=course.environment, cwd=course.root, capture_output=True,
                          encoding='utf-8', check=False)
    assert done.returncode == 0
    assert done.stdout.startswith('Checking exercises/01_double.py') and '<exercise 01: 10 of 10 points>' in done.stdout


@pytest.mark.parametrize('correct', [True, False])
def test_where_lessons_are_tested_the_solution_is_graded_and_nothing_is_noted_down(course, correct):
    solution = course.exercise(1).solution
    if not correct:
        solution.write_text(solution.read_text().replace('return 2 * x', 'return x'))
    done = subprocess.run([sys.executable, '-c', CALL.format(1)], cwd=course.root, capture_output=True, check=False,
                          env={**course.environment, 'FEWGPU_CHECK': 'solutions'}, encoding='utf-8')
    assert done.stdout.startswith('Checking solutions/01_double.py')
    assert (done.returncode == 0) == correct and ('does not pass' in done.stderr) != correct
    assert Progress.load(course.root).of('01_double').attempts == 0
