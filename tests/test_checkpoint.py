"""Checkpoints are whole, or passed over, whatever happened meanwhile. (Runs that go on: test_resume_engines.py.)"""

import enum
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu import Pipeline, launch
from fewgpu.checkpoint import Checkpoints, load_training_state, training_state
from fewgpu.checkpoint_files import write_manifest, write_part
from fewgpu.group import PeerError
from tests.runs import ON_RANKS, Engine, Module, adam, batches, loss_fn, network


@pytest.mark.slow
def test_what_ranks_saved_goes_on_in_one_process_and_with_another_cut(tmp_path: Path) -> None:
    launch(saves_on_ranks, 2, args=(str(tmp_path),))
    saved = Checkpoints(tmp_path).latest()
    assert len(saved.parts) == 2
    plain = Module(network(), adam)
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


def saves_on_ranks(folder: str) -> None:
    run = ON_RANKS['1f1b'](network(), adam, 2)
    for batch in batches()[:3]:
        run.step(*batch)
    Checkpoints(folder).save(3, training_state(run.model, run.optimizer))


@pytest.mark.slow
def test_what_fails_on_one_rank_is_told_to_the_others_and_nothing_of_it_stays(tmp_path: Path) -> None:
    for kind in ('refused', 'not read again', 'another step'):
        told = launch(one_rank_fails, 3, args=(str(tmp_path / kind), kind))
        assert [path.name for path in (tmp_path / kind).iterdir()] == [f'{1:09}']
        if kind == 'another step':
            assert told == ['ValueError'] * 3
        else:
            assert told == ['PeerError of rank 2', 'PeerError of rank 2', 'TypeError']


def one_rank_fails(folder: str, kind: str) -> str:
    checkpoints, last = Checkpoints(folder), dist.get_rank() == 2
    checkpoints.save(1, {'model': {}})
    wrong = {'refused': range(2), 'not read again': b''}.get(kind)
    try:
        checkpoints.save(3 if last and kind == 'another step' else 2, {'model': {'w': wrong if last else 1}})
    except PeerError as error:
        return f'PeerError of rank {error.peer}'
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return 'saved'


@pytest.mark.slow
def test_ranks_that_read_different_checkpoints_do_not_go_on(tmp_path: Path) -> None:
    """Each sees a folder of its own, as where a disk is not shared; or one of them cannot read what the other can."""
    for said in launch(reads_its_own, 2, args=(str(tmp_path),)):
        assert re.search('different checkpoints in .*: rank 0 step 1, rank 1 none', said)


def reads_its_own(folder: str) -> str:
    own = Path(folder, str(dist.get_rank()))
    checkpoints = Checkpoints(own)
    if dist.get_rank() == 0:
        write_part(own / 'rank-0.pt', {'model': {}})
        (own / f'{1:09}').mkdir()
        os.replace(own / 'rank-0.pt', own / f'{1:09}' / 'rank-0.pt')
        write_manifest(own / f'{1:09}', 1, [hashlib.sha256((own / f'{1:09}' / 'rank-0.pt').read_bytes()).hexdigest()])
    with pytest.raises(ValueError) as caught:
        checkpoints.latest()
    return str(caught.value)


@settings(max_examples=25)
@given(st.lists(st.sampled_from((0, 1, 7, 99, 10**9 - 1, 10**9, 10**10)), min_size=1, max_size=5), st.integers(1, 3))
def test_the_newest_are_kept_the_newest_is_read_and_none_is_saved_below_a_later_one(tmp_path_factory, steps, keep):
    folder = tmp_path_factory.mktemp('run')
    checkpoints, saved = Checkpoints(folder, keep=keep), []
    for step in steps:
        state = {'model': {'w': torch.tensor(step)}}
        if saved and step < saved[-1]:
            with pytest.raises(ValueError, match=f'of step {saved[-1]}, later than {step}'):
                checkpoints.save(step, state)
        else:
            assert checkpoints.save(step, state).is_dir()
            saved = sorted({*saved, step})[-keep:]
        assert sorted(int(path.name.partition('.')[0]) for path in folder.iterdir()) == saved
        assert checkpoints.latest().step == saved[-1] == checkpoints.latest().whole('model')['w']


@settings(max_examples=50)
@given(st.data())
def test_what_was_altered_or_cut_short_is_passed_over_put_aside_and_saved_again(tmp_path_factory, data):
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
    assume(not (victim.suffix == '.json' and means(victim.read_bytes()) == means(content)))   # a space became a tab
    with pytest.warns(UserWarning, match='is not used'):
        assert checkpoints.latest().step == 1
    assert len([*folder.glob('*-damaged')]) == 1
    checkpoints.save(2, {'model': {}})
    assert checkpoints.latest().step == 2


def means(content: bytes):
    try:
        return json.loads(content)
    except ValueError:
        return None


class Dies(BaseException):
    pass


@settings(max_examples=40)
@given(keep=st.integers(1, 2), again=st.booleans(), at=st.integers(0, 9))
def test_wherever_a_save_dies_the_checkpoint_before_or_the_new_one_is_there(tmp_path_factory, keep, again, at):
    """It dies at any of its changes of the folder. Afterwards it is saved as if nothing had happened."""
    folder = tmp_path_factory.mktemp('run')
    Checkpoints(folder, keep=keep).save(1, {'model': {'w': 'old'}})
    left = [at]

    def dying(change):
        def changed(*args, **options):
            left[0] -= 1
            if left[0] == -1:
                raise Dies
            return change(*args, **options)
        return changed

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, 'replace'), (shutil, 'rmtree'), (os, 'fsync'), (torch, 'save')):
            patch.setattr(owner, name, dying(getattr(owner, name)))
        died = False
        try:
            Checkpoints(folder, keep=keep).save(1 if again else 2, {'model': {'w': 'new'}})
        except Dies:
            died = True
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        found = Checkpoints(folder, keep=keep).latest().whole('model')['w']
    assert found in (('old', 'new') if died else ('new',))
    Checkpoints(folder, keep=keep).save(2, {'model': {'w': 'newest'}})
    Checkpoints(folder, keep=keep).save(2, {'model': {'w': 'newest'}})
    assert Checkpoints(folder, keep=keep).latest().whole('model')['w'] == 'newest'
    assert sorted(int(path.name.partition('.')[0]) for path in folder.iterdir()) == [1, 2][-keep:]


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(min_size=1),
              st.complex_numbers(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(
        st.one_of(st.text(), st.integers(), st.tuples(st.text(), st.integers())), inner)), max_leaves=8)
ODD = st.sampled_from([Fraction(1, 2), np.float64(1.0), np.int64(1), defaultdict(int), frozenset([1]), range(3), b'',
                       2**9000])


@settings(max_examples=60)
@given(PLAIN, st.one_of(st.none(), ODD), st.booleans())
def test_what_is_written_can_be_read_and_all_else_is_refused(tmp_path_factory, plain, odd, as_key):
    folder = tmp_path_factory.mktemp('run')
    assume(not (as_key and isinstance(odd, defaultdict)))
    state = {'model': {'plain': plain, 'w': nn.Parameter(torch.ones(2)),
                       **({} if odd is None else {odd: 1} if as_key else {'odd': [odd]})}}
    if odd is not None:
        with pytest.raises(TypeError, match='the state'):
            Checkpoints(folder).save(1, state)
    else:
        Checkpoints(folder).save(1, state)
        assert Checkpoints(folder).latest().whole('model')['plain'] == plain
    assert bool(Checkpoints(folder).latest()) == (odd is None)


def test_without_any_whole_checkpoint_there_is_none(tmp_path):
    assert Checkpoints(tmp_path / 'new').latest() is None
    Checkpoints(tmp_path).save(1, {'model': {}})
    (tmp_path / f'{1:09}' / 'manifest.json').unlink()
    with pytest.warns(UserWarning, match='is not used'):
        assert Checkpoints(tmp_path).latest() is None
    with pytest.raises(ValueError, match='at least one'):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(ValueError, match='at least 0 steps'):
        Checkpoints(tmp_path).save(-1, {})
    with pytest.raises(TypeError, match='integer'):
        Checkpoints(tmp_path).save(1.5, {})


class Evil:
    def __reduce__(self):
        return os.system, ('touch gone-wrong',)


def test_a_file_that_would_run_code_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Checkpoints(tmp_path / 'run').save(1, {'model': {}})
    torch.save({'model': Evil()}, folder / 'rank-0.pt')
    manifest = json.loads((folder / 'manifest.json').read_text())
    files = manifest['files']
    files['rank-0.pt'] = hashlib.sha256((folder / 'rank-0.pt').read_bytes()).hexdigest()
    manifest['digest'] = hashlib.sha256(json.dumps([1, files]).encode()).hexdigest()
    (folder / 'manifest.json').write_text(json.dumps(manifest))

    with pytest.warns(UserWarning, match='nothing of it was run'):
        assert Checkpoints(tmp_path / 'run').latest() is None
    assert not Path('gone-wrong').exists()


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    class Level(enum.IntEnum):
        high = 1

    for wrong in (Evil(), Level.high, defaultdict(int), frozenset(), range(2)):
        with pytest.raises(TypeError, match=rf"the state\['model'\]\['w'\]\[1\] is a {type(wrong).__name__}"):
            Checkpoints(tmp_path).save(1, {'model': {'w': [1, wrong]}})
    assert not [*tmp_path.iterdir()]


def test_what_is_missing_is_named(tmp_path):
    run = Module(network(), adam)
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
