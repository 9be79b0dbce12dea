"""Under torchrun the ranks meet by themselves, whichever class they use; it trains as the plain model does."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fewgpu.group import Group, is_distributed, meet
from fewgpu.hybrid import parallelize
from tests import torchrun_script as script

ROOT = Path(__file__).resolve().parents[1]


def plainly() -> dict[str, torch.Tensor]:
    model, (x, y) = script.network(), script.batch()
    script.MSE(model(x), y).backward()
    script.sgd(model.parameters()).step()
    return model.state_dict()


def run(name: str, folder: Path) -> None:
    done = started(name, folder)
    assert done.returncode == 0, f'{name}: {done.stderr[-3000:]}'


def started(name: str, folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1',
                   'PYTHONPATH': os.pathsep.join([str(ROOT / 'lib'), str(ROOT)])}
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2',
               script.__file__, name, str(folder)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_whatever_works_on_ranks_lets_those_of_torchrun_meet(tmp_path) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: run(name, tmp_path), script.TRAINED))
    expected = plainly()
    for name in script.TRAINED:
        found = [torch.load(tmp_path / f'{name}-{rank}.pt') for rank in range(2)]
        assert {*found[0]} | {*found[1]} == {*expected}, name
        for state in found:
            for key, value in state.items():
                torch.testing.assert_close(value, expected[key], msg=lambda m: f'{name}, {key}: {m}')


@pytest.mark.slow
def test_who_comes_first_waits_for_the_others_for_a_limited_time(tmp_path) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: run(name, tmp_path), ('only_rank_0_makes_one', 'one_comes_later')))
    said = torch.load(tmp_path / 'only_rank_0_makes_one-0.pt')
    assert len(said) == len(script.FIRST)
    for name, sentence in zip(script.FIRST, said):
        assert f'after {script.LIMIT:g} s rank 0 still waits for rank 1 to make its first class' in sentence, name
    expected = plainly()
    for rank in range(2):
        for key, value in torch.load(tmp_path / f'one_comes_later-{rank}.pt').items():
            torch.testing.assert_close(value, expected[key])


@pytest.mark.slow
def test_a_rank_that_dies_before_they_meet_ends_the_run(tmp_path) -> None:
    done = started('one_dies', tmp_path)
    assert done.returncode != 0 and 'exitcode  : 3' in done.stderr


def test_without_ranks_nobody_meets_and_who_needs_them_says_how_to_start_them() -> None:
    assert not meet() and not is_distributed()
    for make in (Group, lambda: parallelize(script.network(), '1x2', loss_fn=script.MSE)):
        with pytest.raises(RuntimeError, match='start the ranks with fewgpu.launch or torchrun'):
            make()
