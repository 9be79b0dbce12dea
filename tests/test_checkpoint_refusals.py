"""What a checkpoint does not fit, or cannot be written to, is said in a sentence, and nothing has changed."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from fewgpu import checkpoint, checkpoint_files
from fewgpu.checkpoint import Checkpoints, load_training_state, training_state
from tests.runs import ENGINES, Module, adam, batches, network


@pytest.mark.skipif(sys.platform != 'linux', reason='needs /dev/full, a disk without any room')
def test_a_full_disk_is_told_as_one_and_the_checkpoint_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {'model': {'w': torch.ones(3)}})
    monkeypatch.setattr(checkpoint_files, 'part_of', lambda rank: '/dev/full')
    monkeypatch.setattr(checkpoint, 'part_of', lambda rank: '/dev/full')
    with pytest.raises(OSError, match='No space left'):
        checkpoints.save(2, {'model': {'w': torch.ones(300_000)}})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [f'{1:09}']
    assert checkpoints.latest().step == 1


OPTIMIZERS = {'sgd': torch.optim.SGD, 'adam': torch.optim.Adam, 'adagrad': torch.optim.Adagrad, 'rmsprop': torch.optim.RMSprop}


@pytest.mark.parametrize('saved', OPTIMIZERS)
@pytest.mark.parametrize('engine', ['plain', '1f1b', 'pipedream 2-1', 'Spilled', 'Offloaded'])
def test_another_kind_of_optimizer_is_refused_and_nothing_has_changed(saved: str, engine: str, tmp_path: Path) -> None:
    run = ENGINES['plain'](network(), partial(OPTIMIZERS[saved], lr=0.01), 2)
    run.step(*batches()[0])
    Checkpoints(tmp_path).save(1, training_state(run.model, run.optimizer))
    for kind, other in OPTIMIZERS.items():
        run = ENGINES[engine](network(), partial(other, lr=0.01), 2)
        before = {name: value.clone() for name, value in run.model.state_dict().items()}
        if kind == saved:
            load_training_state(Checkpoints(tmp_path).latest(), run.model, run.optimizer)
            run.step(*batches()[1])
            continue
        with pytest.raises(ValueError, match='another kind of optimizer'):
            load_training_state(Checkpoints(tmp_path).latest(), run.model, run.optimizer)
        assert all(torch.equal(before[name], value) for name, value in run.model.state_dict().items())


def test_what_was_not_saved_is_said_before_anything_changes(tmp_path: Path) -> None:
    run = Module(network(), adam)
    run.step(*batches()[0])
    Checkpoints(tmp_path).save(1, training_state(run.model, run.optimizer, epoch=3))
    other = Module(network(), adam)
    before = {name: value.clone() for name, value in other.model.state_dict().items()}
    with pytest.raises(KeyError, match='has no schedule'):
        load_training_state(Checkpoints(tmp_path).latest(), other.model, other.optimizer, schedule=other.more['scheduler'])
    assert all(torch.equal(before[name], value) for name, value in other.model.state_dict().items())
    with pytest.raises(TypeError, match='begin from the start'):
        load_training_state(None, other.model, other.optimizer)
