"""Ranks are started, watched and ended: functions of a script or a cell, errors, deaths, Ctrl-C, orphans.

Every start of a rank imports torch, so a test here does several things in one start.
"""

import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import fewgpu
from fewgpu.launch import RankDied, launch
from tests.pipes import alive, settled


class Wrong(ValueError):
    """An error of a learner's own."""


class Unpicklable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f'{first} and {second}')


@pytest.fixture(autouse=True)
def temporary_folder_of_our_own(tmp_path, monkeypatch) -> None:
    """What other processes leave in the system's for a while is not ours."""
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))


def leftovers() -> set[str]:
    return set(glob.glob(os.path.join(tempfile.gettempdir(), 'fewgpu-*')))


def test_every_rank_runs_a_closure_and_its_result_comes_back_in_order(capsys) -> None:
    before, weights = leftovers(), torch.arange(3.0)

    class Answer:
        def __init__(self, rank: int, total: torch.Tensor) -> None:
            self.rank, self.total = rank, total

    def closure(factor: int) -> Answer:
        rank = dist.get_rank()
        assert [rank, dist.get_world_size(), rank] == [
            int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')]
        assert torch.cuda.is_available() or torch.get_num_threads() == 1
        os.write(1, f'one line of {rank}\nand an unfinished one'.encode())
        total = factor * (rank + 1) * weights
        dist.all_reduce(total)
        return Answer(rank, total)

    answers = launch(closure, ranks=2, args=(10,))
    assert [answer.rank for answer in answers] == [0, 1]
    assert all(type(answer) is Answer and answer.total.equal(30 * weights) for answer in answers)
    shown = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        assert [line for line in shown if line.startswith(f'[rank {rank}] ')] == [
            f'[rank {rank}] one line of {rank}', f'[rank {rank}] and an unfinished one']
    assert leftovers() <= before


def test_the_error_of_the_rank_that_failed_first_is_raised_with_its_own_lines() -> None:
    def fail() -> None:
        if dist.get_rank() == 1:
            raise Wrong('the real one')   # the learner's own line
        dist.barrier()   # fails, too, for want of the other

    with pytest.raises(Wrong, match='the real one') as caught:
        launch(fail)
    note = '\n'.join(caught.value.__notes__)
    assert 'rank 1 of 2' in note and "# the learner's own line" in note
    assert 'launched.py' not in note


def test_an_error_that_cannot_travel_keeps_its_name_and_a_result_that_cannot_says_so() -> None:
    def fail(raises: bool) -> object:
        if raises:
            raise Unpicklable(1, 2)
        return (x for x in ())

    with pytest.raises(RuntimeError, match='Unpicklable: 1 and 2'):
        launch(fail, ranks=1, args=(True,))
    with pytest.raises(TypeError, match='the result, a generator, cannot be sent'):
        launch(fail, ranks=1, args=(False,))


@pytest.mark.parametrize('die, how', [
    (lambda: os.kill(os.getpid(), signal.SIGKILL), 'rank 2 of 3 was killed by SIGKILL'),
    (lambda: os._exit(3), 'rank 2 of 3 ended with exit code 3 before its function returned'),
    (lambda: __import__('ctypes').string_at(0), 'rank 2 of 3 was killed by SIGSEGV'),
])
def test_a_rank_that_dies_without_a_word_is_named_and_the_others_end(die: Callable, how: str) -> None:
    def one_dies(folder: str) -> None:
        Path(folder, str(os.getpid())).touch()
        dist.barrier()
        if dist.get_rank() == 2:
            die()
        if dist.get_rank() == 1:
            time.sleep(1000)   # hears of nothing
        dist.barrier()

    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        with pytest.raises(RankDied, match=how):
            launch(one_dies, ranks=3, args=(folder,))
        assert time.monotonic() - started < 60
        pids = [int(name) for name in os.listdir(folder)]
    assert len(pids) == 3 and not any(map(alive, pids))


@pytest.mark.slow
def test_the_time_limit_says_who_is_late_and_where(capsys) -> None:
    def wait() -> None:
        if dist.get_rank() == 1:
            time.sleep(1000)   # here

    with pytest.raises(TimeoutError, match=r'after 20 s, not yet returned: rank 1$'):
        launch(wait, time_limit=20)
    assert 'in wait' in capsys.readouterr().out


@pytest.mark.parametrize('fn, options, sentence', [
    (3, {}, 'launch needs a function'),
    (print, {'ranks': 0}, 'at least one rank, not 0'),
    (print, {'ranks': '2'}, "at least one rank, not '2'"),
    (print, {'args': (1, (x for x in ()))}, r'args\[1\], a generator, cannot be sent'),
])
def test_bad_input_gets_one_clear_sentence_before_any_start(fn, options: dict, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence) as caught:
        launch(fn, **options)
    assert '\n' not in str(caught.value)


def test_the_name_in_the_package_can_be_called_whatever_was_imported_before() -> None:
    with pytest.raises(ValueError, match='at least one rank'):
        fewgpu.launch(print, ranks=0)


PARENT = '''
import os, sys, time
from fewgpu.launch import launch

def forever(folder):
    open(os.path.join(folder, str(os.getpid())), 'w').close()
    os.posix_spawn(sys.executable, [sys.executable, '-c', """
import os, sys, time
open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()
time.sleep(1000)""", folder], os.environ)
    while True:
        time.sleep(0.01)

launch(forever, ranks=2, args=(sys.argv[1],))
'''


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_whatever_ends_the_launching_process_leaves_no_process_and_no_folder(
        how: signal.Signals, tmp_path: Path) -> None:
    script, pids, temporary = tmp_path / 'script.py', tmp_path / 'pids', tmp_path / 'tmp'
    script.write_text(PARENT)
    pids.mkdir(), temporary.mkdir()
    path = os.pathsep.join([str(Path(fewgpu.__file__).parents[1]), os.environ.get('PYTHONPATH', '')])
    parent = subprocess.Popen([sys.executable, str(script), str(pids)], stderr=subprocess.PIPE,
                              text=True, env={**os.environ, 'PYTHONPATH': path, 'TMPDIR': str(temporary)})
    assert settled(lambda: len(os.listdir(pids)) == 4, 60)   # two ranks, a child each
    parent.send_signal(how)
    _, words = parent.communicate(timeout=10)
    if how == signal.SIGINT:
        assert 'KeyboardInterrupt' in words
    started = [int(name) for name in os.listdir(pids)]
    assert settled(lambda: not any(map(alive, started)))
    assert settled(lambda: not os.listdir(temporary))


CELL = """
import os, time
import torch.distributed as dist
from fewgpu.launch import launch

def work(how):
    rank = dist.get_rank()
    print('working', flush=True)
    if how == 'fail' and rank == 1:
        raise ValueError('in a cell')   # the learner's own line
    if how == 'hang':
        open(f'pid-{os.getpid()}', 'w').close()
        time.sleep(1000)
    return how, rank
"""


@pytest.mark.slow
def test_functions_of_a_notebook_cell_run_and_a_kernel_that_restarts_takes_its_ranks_along(
        tmp_path: Path) -> None:
    manager = pytest.importorskip('jupyter_client.manager').KernelManager(kernel_name='python3')
    path = os.pathsep.join([str(Path(fewgpu.__file__).parents[1]), os.environ.get('PYTHONPATH', '')])
    manager.start_kernel(cwd=str(tmp_path), env={**os.environ, 'PYTHONPATH': path})
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        shown: list[str] = []

        def show(message: dict) -> None:
            content = message['content']
            shown.append(content.get('text', '') + '\n'.join(content.get('traceback', ()))
                         + content.get('data', {}).get('text/plain', ''))

        client.execute_interactive(CELL, output_hook=show, timeout=60)
        client.execute_interactive("launch(work, args=('result',))", output_hook=show, timeout=60)
        assert '[rank 1] working' in ''.join(shown) and "[('result', 0), ('result', 1)]" in ''.join(shown)
        shown.clear()
        client.execute_interactive("launch(work, args=('fail',))", output_hook=show, timeout=60)
        assert 'raised in rank 1 of 2' in ''.join(shown) and "# the learner's own line" in ''.join(shown)
        client.execute("launch(work, args=('hang',))")
        assert settled(lambda: len(list(tmp_path.glob('pid-*'))) == 2, 60)
        manager.restart_kernel(now=True)
        started = [int(file.name[4:]) for file in tmp_path.glob('pid-*')]
        assert settled(lambda: not any(map(alive, started)))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_lines_are_shown_for_their_time_and_no_longer_however_short(tmp_path, capsys) -> None:
    """It hung, in one run of many, where the time was up when the wait for a line began."""
    from fewgpu.launch import _show, _started

    with _started(0, tmp_path) as (_, lines):
        for _ in range(20_000):
            lines.put('')
            _show(lines, 1e-7)
            _show(lines, 1e-7)
    assert lines.empty()
