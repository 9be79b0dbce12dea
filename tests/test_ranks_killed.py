"""Whichever ranks are killed, and whenever: the others name one of them and end, nobody is left."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fewgpu.launch import RankDied, launch
from fewgpu.transport.ranks import Ranks
from tests.rows import attempt, batches, by_hand, network
from tests.test_launch import alive

SIZE = 3


def steps_for_ever(time_limit: float = 60.0) -> str:
    """Take steps until one says something."""
    dist.barrier()   # the limit is not for imports
    ranks, schedule, layers = Ranks(time_limit=time_limit), by_hand(SIZE), network(SIZE)
    ranks.tell(0, None)
    print('ready', flush=True)
    while True:
        for inputs in batches(3):
            said = attempt(ranks, schedule, layers, inputs)
            if isinstance(said, str):
                return said


@contextmanager
def unattended_ranks(folder: Path, time_limit: float = 60.0) -> Iterator[list[subprocess.Popen]]:
    """Ranks that no launcher watches: what ends them is what they hear from each other."""
    lo = {'linux': 'lo', 'darwin': 'lo0'}[sys.platform]
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, sys.path)),
                   'GLOO_SOCKET_IFNAME': lo}
    started = [subprocess.Popen([sys.executable, '-m', 'tests.test_ranks_killed', str(folder), str(rank),
                                 str(time_limit)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=environment) for rank in range(SIZE)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize('victims', [[0], [1], [2], [2, 0], [0, 1]])
@pytest.mark.parametrize('trial', range(2))
def test_ranks_that_are_killed_at_any_moment_are_named_by_all_others(
        victims: list[int], trial: int, request, tmp_path: Path) -> None:
    moments = random.Random(f'{request.config.getoption("hypothesis_seed")} {victims} {trial}')
    with unattended_ranks(tmp_path) as ranks:
        assert [rank.stdout.readline() for rank in ranks] == ['ready\n'] * SIZE
        for victim in victims:
            seconds = moments.random() ** 3
            print(f'after {seconds:.4f} s rank {victim} is killed')
            time.sleep(seconds)
            ranks[victim].send_signal(signal.SIGKILL)
        for rank in set(range(SIZE)) - set(victims):
            said, _ = ranks[rank].communicate(timeout=10)
            print(f'rank {rank}: {said}')
            assert any(f'RankFailed: rank {victim} died without a word' in said for victim in victims)
            assert 'terminate' not in said and ranks[rank].returncode == 0


@pytest.mark.slow
def test_a_rank_that_is_frozen_is_named_after_the_time_limit(tmp_path: Path) -> None:
    with unattended_ranks(tmp_path, time_limit=3.0) as ranks:
        assert [rank.stdout.readline() for rank in ranks] == ['ready\n'] * SIZE
        ranks[1].send_signal(signal.SIGSTOP)
        for rank in (0, 2):
            said, _ = ranks[rank].communicate(timeout=30)
            assert 'Deadlock: after 3 s rank ' in said
            assert 'rank 1 gives no sign of life since it told that it is ' in said
            assert 'terminate' not in said and ranks[rank].returncode == 0


def children() -> dict[int, int]:
    """The ranks that this process has launched, and their process ids."""
    found = {}
    for pid in ' '.join(file.read_text() for file in Path('/proc/self/task').glob('*/children')).split():
        for entry in Path(f'/proc/{pid}/environ').read_bytes().split(b'\0'):
            if entry.startswith(b'RANK='):
                found[int(entry[5:])] = int(pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize('victim', range(SIZE))
@pytest.mark.parametrize('trial', range(2))
def test_the_launcher_names_a_rank_that_is_killed_at_any_moment_and_ends_the_others(
        victim: int, trial: int, request) -> None:
    seconds = 3 * random.Random(f'{request.config.getoption("hypothesis_seed")} {victim} {trial}').random()
    print(f'rank {victim} is killed {seconds:.4f} s after its start')
    started: dict[int, int] = {}

    def kill() -> None:
        while len(started) < SIZE:
            started.update(children())
        time.sleep(seconds)
        os.kill(started[victim], signal.SIGKILL)
        killed.append(time.monotonic())

    killed: list[float] = []
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RankDied, match=f'rank {victim} of {SIZE} was killed by SIGKILL'):
        launch(steps_for_ever, ranks=SIZE, time_limit=60)
    assert time.monotonic() - killed[0] < 10 and not any(map(alive, started.values()))
    killer.join()


if __name__ == '__main__':
    torch.set_num_threads(1)
    folder, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group('gloo', store=dist.FileStore(f'{folder}/store', SIZE), rank=rank,
                            world_size=SIZE, timeout=timedelta(days=1))
    print(steps_for_ever(float(sys.argv[3])))
