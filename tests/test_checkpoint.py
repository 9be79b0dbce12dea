"""A run that was saved in the middle of an epoch goes on bit for bit, on every engine, whatever happened meanwhile."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu import DataParallel, GPipe, ModelParallel, Pipeline, launch
from fewgpu.checkpoint import Checkpoints, load_training_state, training_state

STEPS, ROWS = 6, 8
LAYERS = [2, 3]   # of two stages
loss_fn = nn.functional.mse_loss


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 2)).double()


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(ROWS, 4, dtype=torch.float64, generator=generator),
             torch.randn(ROWS, 2, dtype=torch.float64, generator=generator)) for _ in range(STEPS)]


def adam(parameters) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.05)


class Module:
    """A run of a module with an optimizer outside of it."""

    def __init__(self, wrap) -> None:
        self.model = wrap(network())
        self.optimizer = adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.more = {'scheduler': self.scheduler}

    def step(self, x, y) -> float:
        self.optimizer.zero_grad()
        loss = loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()


class Engine:
    """A run of an engine that has its optimizers itself."""

    optimizer, more = None, {}

    def __init__(self, model) -> None:
        self.model = model

    def step(self, x, y) -> float:
        return self.model.step(x, y).item()


def pipeline(schedule: str) -> Engine:
    devices = None if dist.is_initialized() else ['cpu'] * 2
    return Engine(Pipeline(network(), LAYERS, schedule=schedule, chunks=2, devices=devices, loss_fn=loss_fn, optimizer=adam))


ENGINES = {
    'plain': lambda: Module(lambda module: module),
    'GPipe': lambda: Module(lambda module: GPipe(module, LAYERS, chunks=2, devices=['cpu'] * 2)),
    'ModelParallel': lambda: Module(lambda module: ModelParallel(module, LAYERS, devices=['cpu'] * 2)),
    '1f1b': lambda: pipeline('1f1b'),
    'pipedream': lambda: pipeline('pipedream'),
    '2bw': lambda: pipeline('2bw'),
}
ON_RANKS = {'DataParallel': lambda: Module(DataParallel), '1f1b': ENGINES['1f1b'], 'gpipe': lambda: pipeline('gpipe')}


def whole_run(make) -> list:
    """Losses, and the weights at the end, as plain numbers."""
    torch.manual_seed(3)
    run = make()
    losses = [run.step(*batch) for batch in batches()]
    return [losses, weights(run)]


def weights(run) -> dict:
    return {name: value.tolist() for name, value in run.model.state_dict().items()}


def interrupted_run(make, folder, at: int) -> list:
    torch.manual_seed(3)
    run = make()
    checkpoints = Checkpoints(folder)
    losses = [run.step(*batch) for batch in batches()[:at]]
    checkpoints.save(at, training_state(run.model, run.optimizer, epoch=7, **run.more))

    torch.manual_seed(999)   # another process would be anywhere
    run = make()
    saved = Checkpoints(folder).latest()
    more = load_training_state(saved, run.model, run.optimizer, **run.more)
    assert (saved.step, more) == (at, {'epoch': 7})
    return [losses + [run.step(*batch) for batch in batches()[at:]], weights(run)]


@pytest.mark.parametrize('name', ENGINES)
@pytest.mark.parametrize('at', (1, 3, 5))
def test_a_run_goes_on_bit_for_bit(name: str, at: int, tmp_path: Path) -> None:
    assert interrupted_run(ENGINES[name], tmp_path, at) == whole_run(ENGINES[name])


def on_ranks(folder: str) -> dict:
    found = {}
    for name, make in ON_RANKS.items():
        found[name] = [whole_run(make), interrupted_run(make, os.path.join(folder, name), 3)]
    return found


@pytest.mark.slow
def test_runs_on_ranks_go_on_bit_for_bit(tmp_path: Path) -> None:
    for of_rank in launch(on_ranks, 2, args=(str(tmp_path),)):
        for whole, interrupted in of_rank.values():
            assert interrupted == whole


@pytest.mark.slow
def test_what_ranks_saved_goes_on_in_one_process_and_with_another_cut(tmp_path: Path) -> None:
    launch(on_ranks, 2, args=(str(tmp_path),))
    saved = Checkpoints(tmp_path / '1f1b').latest()
    assert len(saved.parts) == 2
    plain = Module(lambda module: module)
    other = Engine(Pipeline(network(), [1, 1, 3], chunks=2, devices=['cpu'] * 3, loss_fn=loss_fn, optimizer=adam))
    for run in (plain, other):
        load_training_state(saved, run.model, run.optimizer)
        state = run.model.state_dict()
        assert all(torch.equal(state[name], value) for name, value in saved.whole('model').items())
        assert state.keys() == saved.whole('model').keys()
    taken = training_state(other.model)['optimizer']['state']
    for name, remembered in training_state(plain.model, plain.optimizer)['optimizer']['state'].items():
        assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(taken[name][key]))
                   for key, value in remembered.items())


@settings(max_examples=25)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True), st.integers(1, 3))
def test_the_newest_are_kept_and_the_newest_is_read(tmp_path_factory, steps, keep):
    folder = tmp_path_factory.mktemp('run')
    checkpoints, saved = Checkpoints(folder, keep=keep), []
    for step in steps:
        checkpoints.save(step, {'model': {'w': torch.tensor(step)}})
        saved = sorted([*saved, step])[-keep:]
    assert sorted(int(path.name) for path in folder.iterdir()) == saved
    assert checkpoints.latest().step == max(steps) == checkpoints.latest().whole('model')['w']


@settings(max_examples=50)
@given(st.data())
def test_what_was_altered_or_cut_short_is_passed_over(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp('run')
    checkpoints = Checkpoints(folder)
    for step in (1, 2):
        checkpoints.save(step, {'model': {'w': torch.full((3,), step)}})
    victim = data.draw(st.sampled_from(sorted((folder / f'{2:09}').iterdir())))
    content = victim.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        victim.write_bytes(content[:place])
    else:
        victim.write_bytes(content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1:])
    try:
        unchanged = json.loads((folder / f'{2:09}' / 'manifest.json').read_text()) == json.loads(content)
    except ValueError:
        unchanged = False
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        found = checkpoints.latest()
    assert found.step == (2 if unchanged else 1) or victim.name == 'manifest.json'   # the step's own digit, say
    assert bool(said) == (found.step == 1)


def test_without_any_whole_checkpoint_there_is_none(tmp_path):
    assert Checkpoints(tmp_path / 'new').latest() is None
    Checkpoints(tmp_path).save(1, {'model': {}})
    (tmp_path / f'{1:09}' / 'manifest.json').unlink()
    with pytest.warns(UserWarning, match='is not used'):
        assert Checkpoints(tmp_path).latest() is None
    with pytest.raises(ValueError, match='at least one'):
        Checkpoints(tmp_path, keep=0)


class Evil:
    def __reduce__(self):
        return os.system, ('touch gone-wrong',)


def test_a_file_that_would_run_code_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Checkpoints(tmp_path / 'run').save(1, {'model': {}})
    torch.save({'model': Evil()}, folder / 'rank-0.pt')
    manifest = json.loads((folder / 'manifest.json').read_text())
    manifest['files']['rank-0.pt'] = hashlib.sha256((folder / 'rank-0.pt').read_bytes()).hexdigest()
    (folder / 'manifest.json').write_text(json.dumps(manifest))

    with pytest.warns(UserWarning, match='nothing of it was run'):
        assert Checkpoints(tmp_path / 'run').latest() is None
    assert not Path('gone-wrong').exists()


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(TypeError, match=r"the state\['model'\]\['w'\]\[1\] is a Evil"):
        Checkpoints(tmp_path).save(1, {'model': {'w': [1, Evil()]}})
    assert not [*tmp_path.iterdir()]


def test_what_is_missing_is_named(tmp_path):
    run = ENGINES['plain']()
    run.step(*batches()[0])
    state = training_state(run.model, run.optimizer)
    state['optimizer']['options'].pop('4.weight')
    Checkpoints(tmp_path).save(1, state)
    with pytest.raises(KeyError, match='no optimizer state of 4.weight'):
        load_training_state(Checkpoints(tmp_path).latest(), run.model, run.optimizer)
    with pytest.raises(ValueError, match='not in the model'):
        training_state(network(), run.optimizer)


WRITER = '''
import sys, torch
from fewgpu.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
print('go', flush=True)
for step in range(1, 10_000):
    checkpoints.save(step, {'model': {'w': torch.full((50_000,), float(step))}})
    print(step, flush=True)
'''


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_the_last_checkpoint_that_it_finished(tmp_path):
    for trial in range(5):
        folder = tmp_path / str(trial)
        process = subprocess.Popen([sys.executable, '-c', WRITER, folder], stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        assert process.stdout.readline() == 'go\n'
        time.sleep(random.uniform(0.02, 0.4))
        process.send_signal(signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().split()]
        process.wait()
        process.stdout.close()
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            saved = Checkpoints(folder).latest()
        finished = told[-1] if told else 0
        assert (saved.step if saved else 0) in (finished, finished + 1)
        if saved:
            assert bool((saved.whole('model')['w'] == saved.step).all())
