"""The flags of the scripts, how a script ends, and the devices that it is given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fewgpu import models, schedule
from fewgpu.workshop import arguments, ending, peer
from fewgpu.workshop.watch import Cores, Watch, devices_of
from tests.scripts import PLAIN, ROOT, SOLUTION, parse


def test_flags_name_what_the_library_has_without_importing_torch() -> None:
    assert arguments.ARCHITECTURES == models.ARCHITECTURES
    assert arguments.CHECKPOINTS == schedule.CHECKPOINTS
    source = 'import sys; import fewgpu.workshop.arguments; sys.exit("torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', source], env={**os.environ, 'PYTHONPATH': str(ROOT / 'lib')}).returncode == 0


def test_defaults_are_those_of_the_lecture_in_every_script() -> None:
    plain, pipeline = (vars(parse(script)) for script in (PLAIN, SOLUTION))
    assert (plain['arch'], plain['batchsize'], plain['num_microbatches']) == ('resnet50', 256, 8)
    assert {key for key in plain if plain[key] != pipeline[key]} <= {'devices', 'pipeline'}
    assert plain['devices'] == 1 and 2 <= pipeline['devices'] <= 8
    assert parse(SOLUTION, '--balance_by', '7,8,7').devices == 3


@pytest.mark.parametrize(('flags', 'sentence'), [
    ('--num_microbatches 0', 'a whole number, 1 or more'),
    ('--batchsize -4', 'a whole number, 1 or more'),
    ('--epochs 1.5', 'a whole number, 1 or more'),
    ('--num_workers_dataloader -1', 'a whole number, 0 or more'),
    ('--lr 0', 'above 0'),
    ('--lr nan', 'above 0'),
    ('--momentum -0.1', '0 or more'),
    ('--arch resnet5000000', 'resnet18, resnet50, resnet152, vgg16'),
    ('--arch alexnet', 'resnet18, resnet50, resnet152, vgg16'),
    ('--arch resnet36', 'resnet34 and resnet35'),
    ('--memory_limit 600XB', 'write it like 600MB'),
    ('--samples 60001', '60000 at most'),
    ('--test_samples 10001', '10000 at most'),
    ('--balance_by speed', 'time, memory, or'),
    ('--balance_by 3,0', 'time, memory, or'),
    ('--balance_by 3,4 --devices 3', 'let them agree'),
    ('--checkpoint sometimes', 'except_last'),
    ('--engine megatron', 'torchgpipe'),
    ('--report /dev/null/report.json', 'cannot write to'),
    ('--report .', 'cannot write to'),
    ('--find_batchsize --find_depth', 'one at a time'),
    ('--find_depth --arch vgg16', 'about ResNets'),
    ('--find_depth --balance_by 9,5', 'different numbers of layers'),
    ('--num_microbatch 3', 'unrecognized arguments'),
])
def test_wrong_flag_is_one_sentence(capsys: pytest.CaptureFixture[str], flags: str, sentence: str) -> None:
    with pytest.raises(SystemExit) as end:
        parse(SOLUTION, *flags.split())
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count('\n') == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason='GPUs have a memory of their own')
@pytest.mark.parametrize('flag', ['--find_batchsize', '--find_depth'])
def test_a_search_on_virtual_devices_asks_for_a_limit(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit):
        parse(PLAIN, flag)
    assert '--memory_limit 600MB' in capsys.readouterr().err


def test_report_path_is_tried_without_leaving_or_changing_a_file(tmp_path: Path) -> None:
    old = tmp_path / 'old.json'
    old.write_text('mine')
    assert parse(PLAIN, '--report', str(old)).report == old and old.read_text() == 'mine'
    new = parse(PLAIN, '--report', str(tmp_path / 'folder' / 'new.json')).report
    assert not new.exists() and new.parent.is_dir()


# How a script ends


def test_interrupt_and_out_of_memory_end_a_script_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def full() -> None:
        error = torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB. Including non-PyTorch memory, much.')
        error.add_note('in stage 1 on GPU 0')
        raise error

    for main, code_expected in ((interrupted, 130), (full, 1)):
        with pytest.raises(SystemExit) as end:
            ending.run(main)
        assert end.value.code == code_expected
    error = capsys.readouterr().err
    assert 'Stopped.' in error and 'Tried to allocate 2 GiB. Use a smaller batch' in error and '(in stage 1 on GPU 0)' in error
    assert 'Including' not in error


def test_a_learners_own_error_keeps_its_traceback() -> None:
    def wrong() -> None:
        raise ValueError('mine')

    with pytest.raises(ValueError, match='mine'):
        ending.run(wrong)


def test_torchgpipe_that_is_not_installed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'torchgpipe', None)
    with pytest.raises(SystemExit, match='torchgpipe is not installed'):
        peer.pipeline_of('torchgpipe')


# Devices of the scripts


@pytest.mark.parametrize(('cores', 'name'), [(1, 'CPU 0'), (2, 'CPU 0+1'), (4, 'CPU 0+1+2+3'), (16, 'CPU 0-15')])
def test_cores_together_say_which_they_are(cores: int, name: str) -> None:
    assert Cores(cores, threads=1, memory_limit=1).ledger.name == Cores(cores, threads=1).name == name


def test_cores_set_the_threads_inside_only_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match='inside'), Cores(2, threads=before + 1).active():
        assert torch.get_num_threads() == before + 1
        raise RuntimeError('inside')
    assert torch.get_num_threads() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason='about virtual devices')
def test_plain_on_all_cores_is_one_device_with_a_ledger() -> None:
    devices = devices_of(parse(PLAIN, '--devices', '2'))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    meter = Watch(model, devices)
    with meter.step(3):
        assert torch.get_num_threads() == 2
        model(torch.ones(3, 4)).sum().backward()
    assert [memory.name for memory in meter.memory()] == ['CPU 0+1']
    assert meter.memory()[0].parameters == 20 * 4 and meter.memory()[0].allocated == 40 * 4   # with gradients
    assert meter.cores == 2 and meter.engine == 'plain' and len(meter.busy_share) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason='about virtual devices')
def test_torchgpipe_computes_on_one_thread_a_stage_and_counts_into_one_ledger() -> None:
    class Seen(torch.nn.Linear):
        threads: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Seen.threads.append(torch.get_num_threads())
            return super().forward(x)

    module = torch.nn.Sequential(Seen(4, 4), Seen(4, 4))
    devices = devices_of(parse(SOLUTION, '--devices', '2', '--memory_limit', '1MB'))
    model = peer.pipeline_of('torchgpipe')(module, [1, 1], devices=devices, chunks=3)
    meter = Watch(model, devices)
    with meter.step(5):
        model(torch.ones(5, 4)).sum().backward()
    [memory] = meter.memory()
    assert set(Seen.threads) == {1} and len(Seen.threads) > 2 * 2   # recomputed too
    assert memory.name == 'CPU 0+1' and memory.parameters == 40 * 4 and memory.allocated >= 80 * 4
    assert meter.devices[0].ledger.limit == 2_000_000   # of both devices
    assert meter.engine == 'torchgpipe' and len(meter.busy_share) == 1
