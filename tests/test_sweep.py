"""Sweeps: a grid of runs, in one process or as an array, and what is shown of them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fewgpu.workshop import __main__
from fewgpu.workshop.sweep import Grid, read, read_grid
from fewgpu.workshop.sweep_run import reason
from tests.slurm import ROOT, Slurm

SCRIPT = '''
import json, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print('runs', flush=True)
time.sleep(float(given.get('--seconds', 0)))
if given['--a'] == given.get('--wrong'):
    sys.exit('this a is wrong')
memory = [{'peak': 10 ** 9 * int(given['--b'])}, {'peak': 5}]
json.dump({'samples_per_second': 10.0 * int(given['--a']), 'measured_steps': int(given.get('--steps', 9)),
           'memory': memory}, open(given['--report'], 'w'))
'''
FLAG = st.sampled_from(['--batchsize', '--lr', '--arch', '--balance_by'])
VALUES = st.lists(st.from_regex(r'[a-z0-9][a-z0-9,.]{0,4}', fullmatch=True), max_size=4, unique=True)


@given(st.dictionaries(FLAG, VALUES))
def test_runs_of_a_grid_are_all_combinations_each_once(flags: dict[str, list[str]]) -> None:
    grid = Grid('script.py', flags)
    assert read_grid([word for flag, values in flags.items() for word in (flag, *values)]) == ([], flags)
    expected = 1
    for values in flags.values():
        expected *= max(1, len(values))
    commands = [tuple(grid.command(number)) for number in range(len(grid.runs()))]
    assert len(commands) == len(set(commands)) == expected
    for command in commands:
        before, given_to_it = read_grid(command)
        assert not before and list(given_to_it) == list(flags)
        assert all(set(values) <= set(flags[flag]) and len(values) == min(1, len(flags[flag]))
                   for flag, values in given_to_it.items())


def test_last_of_two_flags_holds_and_a_value_that_is_twice_is_refused() -> None:
    assert read_grid(['x.py', '--lr=1', '--on', '--lr', '2', '3']) == (['x.py'], {'--lr': ['2', '3'], '--on': []})
    with pytest.raises(ValueError, match='--lr has the value 2 twice'):
        read_grid(['--lr', '2', '2'])


@pytest.mark.parametrize('said, why', [
    (['warning', '/x/y.py, line 3: f()', 'too few layers', '', 'advice'], 'too few layers'),
    (['Traceback', '  File "x.py", line 3', 'ValueError: no', ''], 'ValueError: no'),
    ([], 'it said nothing')])
def test_reason_is_the_line_that_says_why(said: list[str], why: str) -> None:
    assert reason(said) == why


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT)
    return path


def start(script: Path, *flags: str, **variables: str) -> subprocess.Popen:
    command = [sys.executable, '-m', 'fewgpu.workshop.sweep_run', str(script), '--out', str(script.parent / 'out')]
    environment = {name: value for name, value in os.environ.items() if not name.startswith('SLURM')}
    return subprocess.Popen([*command, *flags], env={**environment, 'PYTHONPATH': str(ROOT / 'lib'), **variables},
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def sweep(script: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess:
    with start(script, *flags, **variables) as process:
        out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_speeds_of_a_few_steps_are_told_to_be_rough(script: Path) -> None:
    done = sweep(script, '--a', '1', '--b', '1', '--steps', '2', '3', '1')
    assert done.returncode == 0 and 'fewer than 3 steps: the speed of run 0, 2.' in done.stdout, done.stdout


def test_every_run_is_in_the_table_the_picture_and_a_failed_one_fails_the_sweep(script: Path) -> None:
    flags = '--a', '1', '2', '3', '--b', '4', '5'
    fine = sweep(script, *flags)
    assert fine.returncode == 0, fine.stderr
    table = (script.parent / 'out' / 'sweep.txt').read_text()
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows == [[str(2 * (a - 1) + b - 4), str(a), str(b), f'{10 * a}.0', f'{b}.000']
                    for a in (1, 2, 3) for b in (4, 5)]
    assert (script.parent / 'out' / 'sweep.png').read_bytes().startswith(b'\x89PNG')

    assert 'Rough' not in fine.stdout

    wrong = sweep(script, *flags, '--wrong', '2')
    assert wrong.returncode == 1
    for text in (wrong.stdout, (script.parent / 'out' / 'sweep.txt').read_text()):
        assert 'Run 2 (a 2, b 4) failed with exit status 1: this a is wrong' in text
        assert len(re.findall(r'\b[13]0\.0\b', text)) == 4 and '20.0' not in text   # nothing of the earlier sweep
    assert '--array=2,3 and the same arguments' in wrong.stdout

    again = sweep(script, *flags, SLURM_ARRAY_TASK_ID='2', SLURM_ARRAY_TASK_MAX='5', SLURM_ARRAY_JOB_ID='7', PATH='')
    assert again.returncode == 1 and '20.0' in again.stdout   # run 3 has failed still
    shown = CliRunner().invoke(__main__.build(['sweep']), ['sweep', str(script.parent / 'out')], env={'COLUMNS': '150'})
    assert shown.exit_code == 1 and 'Run 3 (a 2, b 5) failed' in shown.stdout and 'Run 2' not in shown.stdout


def test_sweep_that_is_told_to_end_says_so_and_leaves_no_run(script: Path) -> None:
    with start(script, '--a', '1', '2', '--b', '3', '--seconds', '0', '600') as process:
        for _ in range(4):   # run 0 and its word, run 1 and its word
            assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=300)   # which waits for the run, too: it has the same output
    assert process.returncode == 143
    assert 'Run 1 (a 1, seconds 600) failed with exit status 143: cancelled, or its time was over' in out
    assert '--array=1,2,3' in out
    assert [run.note for run in read(script.parent / 'out')[1]] == ['', 'failed', 'has not ended', 'has not ended']


def test_bad_input_gets_one_sentence(script: Path, tmp_path: Path) -> None:
    for flags, words in ((('--a', '1', '1'), 'twice'), (('--report', 'x'), '--report is chosen'),
                         (('--out', '/proc/x'), 'cannot write to --out')):
        done = sweep(script, *flags)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count('\n') == 1, done.stderr
    shown = CliRunner().invoke(__main__.build(['sweep']), ['sweep', str(tmp_path)], env={'COLUMNS': '300'})
    assert shown.exit_code == 2 and 'has no grid.json' in shown.output


@pytest.mark.slow
def test_job_without_slurm_does_one_run_after_the_other(tmp_path: Path) -> None:
    flags = ['--arch', 'resnet18', '--samples', '4', '--test_samples', '4', '--balance_by', '9,5',
             '--batchsize', '2', '4', '--num_microbatches', '2', '--out', 'out']
    environment = {name: value for name, value in os.environ.items() if not name.startswith('SLURM')}
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    done = subprocess.run(['bash', str(ROOT / 'jobs' / 'job_sweep.sh'), *flags],
                          cwd=tmp_path, env={**environment, 'PATH': path, 'CUDA_VISIBLE_DEVICES': ''}, text=True,
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    command = 'solutions/09_mnist_gpipe.py --balance_by 9,5 --num_microbatches 2 --batchsize 4'
    assert f'Run 1 of 0 to 1: {command}' in done.stdout
    measured = [run.values for run in read(tmp_path / 'out')[1] if run.speed]
    assert measured == [{'--batchsize': '2'}, {'--batchsize': '4'}]


@pytest.mark.slow
def test_array_on_slurm_makes_one_table_whoever_ends_last(slurm: Slurm, slurm_kit: Path, script: Path) -> None:
    small = '--arch', 'resnet18', '--batchsize', '4', '--samples', '4', '--test_samples', '4', '--num_microbatches', '2'
    flags = '--out', str(slurm_kit / 'out'), *small, '--balance_by', '9,5', '3,3'
    job = slurm.submit(slurm_kit, '--array=0-2', 'jobs/job_sweep.sh', *flags)
    assert job.wait() == 'FAILED'
    output = job.output
    assert output.count('Run 1 (balance_by 3,3) failed with exit status 1: module and sum of balance') == 1   # one table
    assert 'task 2 has nothing to do' in output and output.count('Picture: ') == 1
    first, second = read(slurm_kit / 'out')[1]
    assert first.speed and second.failed and 'Run 1 (balance_by 3,3) failed' in (slurm_kit / 'out' / 'sweep.txt').read_text()

    (slurm_kit / 'out' / 'run-1.end').write_text(json.dumps({'status': 0, 'said': ''}))   # as if it were mended
    before = (slurm_kit / 'out' / 'run-0.json').read_text()
    job = slurm.submit(slurm_kit, '--array=0', 'jobs/job_sweep.sh', *flags)
    assert job.wait() == 'COMPLETED', job.output
    assert (slurm_kit / 'out' / 'run-0.json').read_text() != before and 'submit with --array=0-1' in job.output


@pytest.mark.parametrize('name, text', [
    ('run-0.end', '[1]'), ('run-0.end', '{}'), ('run-0.json', '{"x": 1}'), ('run-0.json', '[]'), ('run-0.json', '{')])
def test_broken_reports_count_as_missing(tmp_path, name, text):
    import json

    from fewgpu.workshop.sweep import read
    (tmp_path / 'grid.json').write_text(json.dumps({'script': 'a.py', 'flags': {'--x': ['1', '2']}}))
    (tmp_path / 'run-0.end').write_text('{"status": 0, "said": ""}')
    (tmp_path / 'run-0.json').write_text('{"samples_per_second": 1.0, "memory": [{"peak": 1}]}')
    assert read(tmp_path)[1][0].speed == 1.0
    (tmp_path / name).write_text(text)
    run = read(tmp_path)[1][0]
    assert run.report is None and run.note


@pytest.mark.parametrize('text', ['{', '[]', '{}', '{"script": "a", "flags": {"--x": 1}}'])
def test_a_broken_grid_is_named(tmp_path, text):
    from fewgpu.workshop.sweep import read
    (tmp_path / 'grid.json').write_text(text)
    with pytest.raises(ValueError, match='grid.json is broken: run the sweep again'):
        read(tmp_path)
