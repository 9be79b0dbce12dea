"""A run that is killed at any moment, again and again, ends as one that never was; nobody is left, and all is said.

FEWGPU_KILLS says how often (default: 50).
"""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fewgpu.checkpoint_files import read_parts
from tests.killed_training import EVERY

ROOT = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get('FEWGPU_KILLS', 50))
PATIENCE = 120.0   # seconds, on a machine that does much else
MARK = 'FEWGPU_KILLED_RUN'
FOR_EVER = 10**6
TOLD = re.compile(r'^(?:\[rank \d+\] )?step (\d+)$', re.MULTILINE)   # a whole line: errors name steps, too

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != 'linux', reason='processes are looked up in /proc')]


class Run:
    """A run in a process of its own, which launches its ranks; whoever belongs to it has its mark."""

    def __init__(self, folder: Path, ranks: int, last: int = FOR_EVER, *, torchrun: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.lines = folder, []
        self._mark = f'{MARK}={folder}\0'.encode()
        arguments = [str(folder), str(ranks), str(last)]
        command = [sys.executable, '-m', 'tests.killed_training', *arguments]
        if torchrun:
            command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(ranks),
                       str(ROOT / 'tests' / 'killed_training.py'), *arguments]
        environment = {**os.environ, MARK: str(folder), 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1',
                       'PYTHONPATH': os.pathsep.join([str(ROOT / 'lib'), str(ROOT)]), 'PYTHONUNBUFFERED': '1'}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
                                         stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        return ''.join(self.lines)

    def _read(self) -> None:
        for line in self._process.stdout:
            self.lines.append(line)

    def processes(self) -> dict[int, int]:
        """The process ids of its ranks; that of the process that started them as -1."""
        found = {}
        for file in Path('/proc').glob('[0-9]*/environ'):
            try:
                content, state = file.read_bytes() + b'\0', (file.parent / 'stat').read_text().rpartition(')')[2].split()
            except OSError:
                continue
            if self._mark in content and state[0] not in 'ZX':
                rank = re.search(rb'(?:^|\0)RANK=(\d+)\0', content)
                found[int(rank[1]) if rank else -1] = int(file.parent.name)
        return found

    def steps(self) -> int:
        """How many steps were taken, by all ranks together."""
        return len(TOLD.findall(self.said))

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, f'{what}: not within {PATIENCE:g} s\n{self.said[-3000:]}'
            time.sleep(0.005)

    def ends(self) -> int:
        """Wait until nobody is left; the exit code."""
        self.wait_for(lambda: self._process.poll() is not None, 'the process ends')
        self.wait_for(lambda: not self.processes(), 'the ranks end')
        self._reader.join(PATIENCE)
        return self._process.returncode

    def clear(self) -> None:
        """Whatever a test that failed has left."""
        for pid in self.processes().values():
            with suppress(ProcessLookupError):   # it may end meanwhile
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)
        self._process.stdout.close()


def strike(run: Run, dice: random.Random, ranks: int) -> tuple[int, signal.Signals]:
    """Kill somebody at some moment: who it was (-1: the process that launched them), and how."""
    number = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    if dice.random() < 0.25:   # while it starts
        time.sleep(dice.random() * 2)
    else:                      # in a step, or while it saves
        wanted = ranks * dice.randrange(1, 8)
        run.wait_for(lambda: run.steps() >= wanted, f'{wanted} steps')
        time.sleep(dice.random() * 0.02)
    found = run.processes()
    victim = dice.choice(sorted(found))
    os.kill(found[victim], number)
    return victim, number


def verify(run: Run, ranks: int, at_least: int) -> int:
    """All checkpoints that the folder lists are whole; the newest is not older than what was said to be saved."""
    folder = run.folder / 'checkpoints'
    listed = sorted(folder.glob('[0-9]*')) if folder.exists() else []
    steps = [int(each.name.partition('.')[0]) for each in listed]
    assert not [each for each in listed if each.name.endswith('-damaged')]
    for each, step in zip(listed, steps):
        assert len(read_parts(each, step)) == ranks and step % EVERY == 0
    told = [int(step) // EVERY * EVERY for step in TOLD.findall(run.said)]
    newest = max(steps, default=0)
    assert newest >= max([at_least, *told])
    return newest


def losses(folder: Path) -> dict[int, set[float]]:
    """By step: those that were written, of all attempts."""
    found: dict[int, set[float]] = {}
    for line in (folder / 'losses').read_text().splitlines():
        step, loss = line.split()
        found.setdefault(int(step), set()).add(float(loss))
    return found


def killed_again_and_again(folder: Path, ranks: int, kills: int, seed: str, *, torchrun: bool = False) -> None:
    dice, newest = random.Random(seed), 0
    for trial in range(kills):
        run = Run(folder, ranks, torchrun=torchrun)
        try:
            victim, number = strike(run, dice, ranks)
            told = f'{seed}, kill {trial}: {"the launcher" if victim < 0 else f"rank {victim}"} by {number.name}'
            assert run.ends() != 0, told
            newest = verify(run, ranks, newest)
            if victim >= 0 and torchrun:
                assert re.search(rf'rank\s*: {victim}\b', run.said) or 'Signal' in run.said, f'{told}\n{run.said}'
            elif victim >= 0:
                assert f'rank {victim} of {ranks} was killed by {number.name}' in run.said, f'{told}\n{run.said}'
        finally:
            run.clear()
    last = newest + 3
    for name in (folder, folder.with_name(f'{folder.name}-never')):   # to its end; and one that was never killed
        run = Run(name, ranks, last)
        try:
            assert run.ends() == 0, run.said
        finally:
            run.clear()
    found, expected = losses(folder), losses(folder.with_name(f'{folder.name}-never'))
    assert {*expected} == {*range(1, last + 1)} and {*found} >= {*expected}
    for step, values in expected.items():
        assert found[step] == values and len(values) == 1, (seed, step)


def test_a_run_that_is_killed_at_any_moment_goes_on_as_if_it_never_was(tmp_path: Path, request) -> None:
    seed = request.config.getoption('hypothesis_seed')
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(killed_again_and_again, tmp_path / f'run {place}', 2, kills, f'{seed} {place}')
                 for place, kills in enumerate([(KILLS + 1) // 2, KILLS // 2])]
        for part in parts:
            part.result()


def test_under_torchrun_too(tmp_path: Path, request) -> None:
    seed = request.config.getoption('hypothesis_seed')
    killed_again_and_again(tmp_path / 'torchrun', 2, max(KILLS // 25, 1), f'{seed} torchrun', torchrun=True)
