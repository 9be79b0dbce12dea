"""The MNIST scripts, run as a learner runs them, and the parts that they are made of."""

import argparse
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fewgpu import models, schedule
from fewgpu.workshop import arguments, ending, peer
from fewgpu.workshop.strip import strip
from fewgpu.workshop.watch import Cores, Watch, devices_of

ROOT = Path(__file__).resolve().parents[1]
PLAIN, EXERCISE, SOLUTION = 'exercises/mnist_pytorch.py', 'exercises/09_mnist_gpipe.py', 'solutions/09_mnist_gpipe.py'
SCRIPTS = (PLAIN, EXERCISE, SOLUTION)
SMALL = ['--arch', 'resnet18', '--batchsize', '4', '--test_samples', '4', '--balance_by', '9,5']
KEYS = {'engine', 'arch', 'batch', 'chunks', 'balance', 'checkpoint', 'devices', 'threads', 'samples', 'samples_per_second',
        'measured_steps', 'loss', 'accuracy', 'test_samples', 'memory', 'memory_how', 'busy_share', 'busy_how', 'timeline',
        'seed', 'torch'}


def run(script: str, *flags: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """A run of its own on virtual devices."""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT / 'lib'), 'CUDA_VISIBLE_DEVICES': ''}
    return subprocess.run([sys.executable, str(ROOT / script), *flags], cwd=cwd, env=environment, text=True,
                          capture_output=True, timeout=600)


def module(script: str) -> ModuleType:
    """A script as a module, not run."""
    spec = importlib.util.spec_from_file_location(Path(script).stem, ROOT / script)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def parse(script: str, *flags: str) -> argparse.Namespace:
    return arguments.parse(None, pipeline=script != PLAIN, arguments=flags)


@pytest.fixture(scope='module')
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """The report of a run with these flags; the same run is made once. '_output' is what it printed."""
    reports: dict[tuple[str, ...], dict[str, Any]] = {}

    def of(script: str, *flags: str) -> dict[str, Any]:
        if (script, *flags) not in reports:
            file = tmp_path_factory.mktemp('report') / 'new folder' / 'report.json'
            done = run(script, *SMALL, '--report', str(file), *flags)
            assert done.returncode == 0, done.stderr
            reports[script, *flags] = json.loads(file.read_text()) | {'_output': done.stdout}
        return reports[script, *flags]
    return of


ONE_STEP = ('--samples', '4', '--num_microbatches', '1', '--checkpoint', 'never')
RUNS = {
    'plain': (PLAIN, *ONE_STEP),
    'unsolved': (EXERCISE, *ONE_STEP),
    'fewgpu': (SOLUTION, *ONE_STEP),
    'torchgpipe': (SOLUTION, *ONE_STEP, '--engine', 'torchgpipe'),
}
UNEVEN = (SOLUTION, '--samples', '10', '--num_microbatches', '3', '--log_interval', '1')   # 4 = 2+1+1, 4, and 2 = 1+1


@pytest.mark.parametrize('run_of', RUNS)
def test_report_has_every_key_and_its_figures_make_sense(report, run_of: str) -> None:
    found = report(*RUNS[run_of])
    assert KEYS <= found.keys()
    assert found['engine'] == ('plain' if run_of == 'unsolved' else run_of)
    assert sum(found['balance']) == len(models.build('resnet18'))
    assert found['samples'] == 4 and found['measured_steps'] == 1 and found['samples_per_second'] > 0
    assert math.isfinite(found['loss']) and 0 <= found['accuracy'] <= 1
    assert all(0 < share <= 1.05 for share in found['busy_share'])
    assert all(0 < one['parameters'] < one['allocated'] <= one['peak'] for one in found['memory'])
    assert len(found['devices']) == len(found['balance'])


@pytest.mark.parametrize('engine', ['fewgpu', 'torchgpipe'])
def test_first_loss_of_one_micro_batch_is_that_of_the_plain_script(report, engine: str) -> None:
    assert report(*RUNS[engine])['loss'] == pytest.approx(report(*RUNS['plain'])['loss'], rel=1e-4)


def test_unsolved_exercise_trains_as_the_plain_script_and_says_so(report) -> None:
    unsolved, plain = report(*RUNS['unsolved']), report(*RUNS['plain'])
    assert unsolved['loss'] == plain['loss']
    assert 'not yet a pipeline' in unsolved['_output'] and 'not yet' not in plain['_output']


@pytest.mark.parametrize('engine', ['fewgpu', 'torchgpipe'])
def test_devices_together_hold_the_parameters_of_the_plain_model_and_about_its_memory(report, engine: str) -> None:
    [plain], stages = report(*RUNS['plain'])['memory'], report(*RUNS[engine])['memory']
    total = {key: sum(one[key] for one in stages) for key in ('parameters', 'allocated', 'peak')}
    assert total['parameters'] == plain['parameters']
    assert total['allocated'] == pytest.approx(plain['allocated'], rel=0.02)
    assert total['peak'] == pytest.approx(plain['peak'], rel=0.1)   # one stage is not at its peak when another is


def test_uneven_chunks_and_the_last_smaller_mini_batch_are_trained(report) -> None:
    found = report(*UNEVEN)
    assert found['samples'] == 10
    rows = found['timeline']['rows']   # of the last full step
    assert [[op[0] for op in row].count('F') for row in rows] == [3, 3]
    assert all(op[0] in 'FRB' and op[3] <= op[4] for row in rows for op in row)
    assert all(before[4] <= after[3] for row in rows for before, after in zip(row, row[1:]))


def test_output_while_it_trains_has_the_form_that_the_lesson_shows(report) -> None:
    lines = report(*UNEVEN)['_output'].splitlines()
    assert sum(bool(re.fullmatch(r'train \| 1/1 epoch \((33|67)%\) \| \d+\.\d{3} samples/sec \(estimated\)', line))
               for line in lines) == 2
    assert sum(bool(re.fullmatch(r'CPU [01]: allocated \d\.\d{3} GB, peak \d\.\d{3} GB', line)) for line in lines) == 6
    assert sum(bool(re.fullmatch(r'train \| 1/1 epoch \(100%\) \| \d+\.\d{3} samples/sec \| loss \d+\.\d{4}', line))
               for line in lines) == 1
    assert sum(bool(re.fullmatch(r'test \| loss \d+\.\d{4} \| accuracy [01]\.\d{4}', line)) for line in lines) == 1
    assert any('ledger counted during the first 2 steps' in line for line in lines)


def test_memory_limit_stops_the_plain_script_with_one_sentence_where_the_pipeline_fits() -> None:
    flags = ['--arch', 'resnet18', '--batchsize', '32', '--samples', '32', '--test_samples', '4', '--memory_limit', '150MB']
    plain, pipeline = run(PLAIN, *flags), run(SOLUTION, *flags, '--balance_by', '9,5')
    assert plain.returncode == 1
    assert re.fullmatch(r'CPU 0 out of memory\. Tried .* 150\.0 MB limit .*more micro-batches, .*\n', plain.stderr)
    assert pipeline.returncode == 0, pipeline.stderr
    assert 'there is a limit' in pipeline.stdout


@pytest.mark.slow
def test_600_megabytes_are_too_few_for_resnet50_at_batch_128_and_enough_for_its_pipeline() -> None:
    flags = ['--batchsize', '128', '--samples', '128', '--test_samples', '16', '--memory_limit', '600MB']
    plain, pipeline = run(PLAIN, *flags), run(SOLUTION, *flags, '--devices', '2', '--balance_by', 'memory')
    assert plain.returncode == 1 and plain.stderr.startswith('CPU 0 out of memory.') and 'Traceback' not in plain.stderr
    assert pipeline.returncode == 0, pipeline.stderr


@pytest.mark.slow
@pytest.mark.parametrize('flags', [['--arch', 'vgg16'], ['--arch', 'resnet152', '--checkpoint', 'always'],
                                   ['--balance_by', 'time', '--epochs', '2', '--num_workers_dataloader', '1']])
def test_every_network_trains_in_a_pipeline(flags: list[str]) -> None:
    done = run(SOLUTION, '--batchsize', '2', '--samples', '2', '--test_samples', '2', '--balance_by', 'memory', *flags)
    assert done.returncode == 0, done.stderr
    assert re.search(r'^test \| loss', done.stdout, re.MULTILINE)


# What the same seed gives


@pytest.mark.parametrize('script', [EXERCISE, SOLUTION])
def test_same_seed_gives_the_weights_and_the_order_of_the_plain_script(script: str) -> None:
    flags = ['--arch', 'resnet18', '--samples', '40', '--batchsize', '16', '--seed', '7', '--balance_by', '9,5', '--devices', '2']
    theirs, mine = module(PLAIN), module(script)
    args, plain_args = parse(script, *flags), parse(PLAIN, *flags)
    weights, plain_weights = mine.build(args)[0].state_dict(), theirs.build(plain_args)[0].state_dict()
    assert weights.keys() == plain_weights.keys()
    assert all(torch.equal(weights[key], plain_weights[key]) for key in weights)
    labels = [y for _ in range(2) for _, y in mine.load(args)[0]]
    plain_labels = [y for _ in range(2) for _, y in theirs.load(plain_args)[0]]
    assert [len(y) for y in labels] == [16, 16, 8] * 2
    assert all(map(torch.equal, labels, plain_labels))


def test_another_seed_gives_other_weights() -> None:
    built = [module(PLAIN).build(parse(PLAIN, '--arch', 'resnet18', '--seed', seed))[0] for seed in '12']
    assert not torch.equal(built[0][0].weight, built[1][0].weight)


# The exercise and its solution


def code(script: str) -> list[str]:
    """The lines of a script without its docstring, comments and blanks."""
    text = (ROOT / script).read_text(encoding='utf-8').split('"""', 2)[2]
    lines = (re.sub(r'\s*# .*', '', line) for line in text.splitlines())
    return [line for line in lines if line]


def test_exercise_is_its_solution_with_the_steps_taken_out() -> None:
    assert (ROOT / EXERCISE).read_text(encoding='utf-8') == strip((ROOT / SOLUTION).read_text(encoding='utf-8'))


def test_exercise_is_the_plain_script_but_for_imports_and_the_steps_to_do() -> None:
    plain, exercise = code(PLAIN), code(EXERCISE)
    assert [line for line in exercise if line not in plain and ' import ' not in line] == [
        '    args = arguments.parse(__doc__, pipeline=True)']
    assert [line for line in plain if line not in exercise] == ['    args = arguments.parse(__doc__)']


def test_solution_marks_the_five_steps_in_order() -> None:
    text = (ROOT / SOLUTION).read_text(encoding='utf-8')
    assert re.findall(r'# STEP (\d): ', text) == list('12345')
    assert re.findall(r'# TODO STEP (\d): ', (ROOT / EXERCISE).read_text(encoding='utf-8')) == list('12345')


def test_strip_keeps_what_is_not_marked_and_refuses_a_step_without_end() -> None:
    text = 'a\n  # STEP 1: do\n  # Hint: so\n  b\n  # a remark\n  # was: c\n  # was:   d\n  # END\n# END\ne'
    assert strip(text) == 'a\n  # TODO STEP 1: do\n  # Hint: so\n  c\n    d\n  # END\n# END\ne'
    assert strip(strip(text)) == strip(text)
    with pytest.raises(ValueError, match='STEP 1 of the solution has no END'):
        strip('# STEP 1: do\nb\n')


# Flags


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


def test_missing_data_and_too_few_layers_are_a_sentence_with_the_line_that_asked() -> None:
    for flags, sentence in ((['--datadir', str(ROOT / 'nowhere')], 'is not a folder'),
                            (['--devices', '15', '--balance_by', 'memory'], '14 layers are too few for 15')):
        done = run(SOLUTION, '--arch', 'resnet18', '--samples', '4', '--batchsize', '4', *flags)
        assert done.returncode == 1 and sentence in done.stderr
        assert '09_mnist_gpipe.py, line' in done.stderr and 'Traceback' not in done.stderr


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
