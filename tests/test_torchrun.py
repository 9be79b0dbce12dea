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
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1',
                   'PYTHONPATH': os.pathsep.join([str(ROOT / 'lib'), str(ROOT)])}
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2',
               script.__file__, name, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f'{name}: {done.stderr[-3000:]}'


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


def test_without_ranks_nobody_meets_and_who_needs_them_says_how_to_start_them() -> None:
    assert not meet() and not is_distributed()
    for make in (Group, lambda: parallelize(script.network(), '1x2', loss_fn=script.MSE)):
        with pytest.raises(RuntimeError, match='start the ranks with fewgpu.launch or torchrun'):
            make()
