"""The MNIST scripts, run as a learner runs them: what they print, report and refuse."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fewgpu import models
from tests.scripts import EXERCISE, PLAIN, ROOT, SOLUTION, run

SMALL = ['--arch', 'resnet18', '--batchsize', '4', '--test_samples', '4', '--balance_by', '9,5']
KEYS = {'engine', 'arch', 'batch', 'chunks', 'balance', 'checkpoint', 'devices', 'threads', 'samples', 'samples_per_second',
        'measured_steps', 'loss', 'accuracy', 'test_samples', 'memory', 'memory_how', 'busy_share', 'busy_how', 'timeline',
        'seed', 'torch'}


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
    flags = ['--arch', 'resnet18', '--batchsize', '32', '--samples', '64', '--test_samples', '4', '--memory_limit', '200MB']
    plain, pipeline = run(PLAIN, *flags), run(SOLUTION, *flags, '--balance_by', '9,5')
    assert plain.returncode == 1
    assert re.fullmatch(r'CPU 0 out of memory\. Tried .* 200\.0 MB limit .*more micro-batches, .*\n', plain.stderr)
    assert pipeline.returncode == 0, pipeline.stderr
    assert 'there is a limit' in pipeline.stdout


@pytest.mark.slow
def test_600_megabytes_are_too_few_for_resnet50_at_batch_128_and_enough_for_its_pipeline() -> None:
    flags = ['--batchsize', '128', '--samples', '256', '--test_samples', '16', '--memory_limit', '600MB']
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


def test_missing_data_and_too_few_layers_are_a_sentence_with_the_line_that_asked() -> None:
    for flags, sentence in ((['--datadir', str(ROOT / 'nowhere')], 'is not a folder'),
                            (['--devices', '15', '--balance_by', 'memory'], '14 layers are too few for 15')):
        done = run(SOLUTION, '--arch', 'resnet18', '--samples', '4', '--batchsize', '4', *flags)
        assert done.returncode == 1 and sentence in done.stderr
        assert '09_mnist_gpipe.py, line' in done.stderr and 'Traceback' not in done.stderr


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize('engine', ['fewgpu', 'torchgpipe'])
def test_two_stages_share_a_gpu_and_the_output_says_so(tmp_path: Path, engine: str) -> None:
    file = tmp_path / 'report.json'
    done = run(SOLUTION, *SMALL, '--samples', '12', '--log_interval', '1', '--engine', engine, '--report', str(file), gpus='0')
    assert done.returncode == 0, done.stderr
    assert re.search(r'^GPU 0: allocated \d+\.\d{3} GB, reserved \d+\.\d{3} GB, peak \d+\.\d{3} GB$', done.stdout, re.MULTILINE)
    assert '2 stages share GPU 0' in done.stdout
    found = json.loads(file.read_text())
    assert found['devices'] == ['GPU 0', 'GPU 0'] and len(found['memory']) == 1
    assert found['memory'][0]['reserved'] >= found['memory'][0]['allocated'] > 0
    assert (found['busy_share'] is None) == (engine == 'torchgpipe')


@pytest.mark.gpu
def test_memory_limit_holds_on_a_gpu_and_the_pipeline_fits_it() -> None:
    flags = ['--batchsize', '128', '--samples', '256', '--test_samples', '16', '--memory_limit', '600MB']
    plain, pipeline = run(PLAIN, *flags, gpus='0'), run(SOLUTION, *flags, '--balance_by', 'memory', gpus='0')
    assert plain.returncode == 1 and 'out of memory' in plain.stderr and 'Traceback' not in plain.stderr
    assert pipeline.returncode == 0, pipeline.stderr


@pytest.mark.gpu
@pytest.mark.parametrize('script', [PLAIN, SOLUTION])
def test_largest_batch_is_found_on_a_gpu(script: str) -> None:
    done = run(script, '--arch', 'resnet18', '--find_batchsize', '--memory_limit', '1GB', gpus='0')
    assert done.returncode == 0, done.stderr
    assert int(re.search(r'^The largest batch that fits is (\d+) ', done.stdout, re.MULTILINE)[1]) > 1
