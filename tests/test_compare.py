"""The compare command: what it starts, what it writes, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fewgpu.workshop.__main__ as workshop
from fewgpu.schedule import Op
from fewgpu.trace import Span, Timeline
from fewgpu.workshop import arguments, compare, contestants, machine, picture, report
from fewgpu.workshop.contestants import Contestant, Result, Settings, command_line

SETTINGS = Settings(arch='resnet50', devices=2, batchsize=64, pipeline_batchsize=64, num_microbatches=8,
                    samples=256, test_samples=64, epochs=1, seed=0, threads=2)
KEYS = compare.KEYS


# Who is started, and how


@pytest.mark.parametrize('one', contestants.contestants(SETTINGS, [12, 10]), ids=lambda one: one.key)
def test_the_scripts_understand_what_they_are_given(one):
    piped = one.script == contestants.GPIPE
    args = arguments.parse(None, pipeline=piped, arguments=one.arguments)

    assert (args.arch, args.batchsize, args.samples, args.test_samples) == ('resnet50', 64, 256, 64)
    if piped:
        assert args.balance_by == [12, 10] and args.devices == 2
        assert args.num_microbatches == (1 if one.key == 'model-parallel' else 8)
        assert args.checkpoint == ('except_last' if one.key in ('gpipe-recompute', 'torchgpipe') else 'never')
        assert args.engine == ('torchgpipe' if one.key == 'torchgpipe' else 'fewgpu')
    else:
        assert args.devices == (2 if one.key == 'plain-all' else 1)


def test_all_cores_take_part_only_where_devices_are_cores():
    with_gpus = contestants.contestants(Settings(**{**vars(SETTINGS), 'threads': 0}), [11, 11])
    assert [one.key for one in with_gpus] == [key for key in KEYS if key != 'plain-all']
    assert [one.key for one in contestants.contestants(SETTINGS, [11, 11])] == list(KEYS)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a stand-in for a contestant's script, with this code."""
    monkeypatch.setattr(contestants, 'repository', lambda: tmp_path)

    def write(code):
        (tmp_path / 'script.py').write_text('import sys, os, time, pathlib\n' + code)
        return Contestant('plain', 'plain', 'plain', 'script.py', ('--samples', '8'))
    return write


def test_a_script_runs_with_its_arguments_and_its_report_is_read(script, tmp_path, capfd):
    contestant = script("print(sys.argv[1:3], flush=True)\n"
                        "pathlib.Path(sys.argv[sys.argv.index('--report') + 1]).write_text('{\"loss\": 1.5}')")

    result = contestants.run(contestant, tmp_path)
    assert result.report == {'loss': 1.5} and not result.failure
    assert "['--samples', '8']" in capfd.readouterr().out
    assert command_line(contestant) == 'python script.py --samples 8'


@pytest.mark.parametrize('code, sentence', [
    ("sys.exit('CPU 0 out of memory. Use a smaller batch.')", 'CPU 0 out of memory. Use a smaller batch.'),
    ("print('It broke.\\n(in stage 1 on CPU 1)', file=sys.stderr); sys.exit(1)", 'It broke.'),
    ("e = ValueError('too few'); e.add_note('in stage 0'); raise e", 'ValueError: too few'),
    ('sys.exit(3)', 'ended with exit code 3 and no report'),
    ('pass', 'ended with exit code 0 and no report'),
    ('os.kill(os.getpid(), 9)', 'ended by signal 9 (SIGKILL)')])
def test_a_failure_is_told_in_the_sentence_of_the_script(script, tmp_path, code, sentence):
    contestant = script(code)
    (tmp_path / 'plain.json').write_text('{}')   # the report of an earlier run is not taken for this one's
    assert contestants.run(contestant, tmp_path).failure == sentence


def test_what_a_script_complains_about_is_passed_on(script, tmp_path, capfd):
    contestants.run(script("print('a warning', file=sys.stderr); raise ValueError('too few')"), tmp_path)
    complaints = capfd.readouterr().err
    assert complaints.startswith('a warning\nTraceback') and complaints.endswith('ValueError: too few\n')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_script_too(script, tmp_path, number):
    script("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
           "pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(60)")
    code = ("from pathlib import Path; from fewgpu.workshop import compare, contestants;"
            "contestants.repository = lambda: Path('.');"
            "compare.contestants = lambda settings, balance: ["
            "contestants.Contestant('plain', 'plain', 'plain', 'script.py', ())];"
            "compare.machine.two_core_efficiency = lambda threads: 1.0;"
            "import typer; typer.run(compare.compare)")
    process = subprocess.Popen([sys.executable, '-c', code, '--arch', 'resnet18', '--balance_by', '7,7',
                                '--out', 'out'], cwd=tmp_path,
                               stdout=subprocess.PIPE, text=True)
    child = wait_for(lambda: (tmp_path / 'pid').exists() and (tmp_path / 'pid').read_text(), process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)

    assert process.returncode == 130 and 'plain was ended' in output
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def wait_for(condition, process, limit=60.0):
    end = time.monotonic() + limit
    while not (value := condition()):
        assert process.poll() is None and time.monotonic() < end, 'it did not come'
        time.sleep(0.05)
    return value


# The machine and the sizes


def test_sizes_shrink_without_a_gpu_and_only_where_nothing_was_asked_for(monkeypatch):
    monkeypatch.setattr(machine, 'gpus', lambda: [])
    monkeypatch.setattr(machine, 'cores', lambda: 8)
    nothing = {'batchsize': None, 'samples': None, 'test_samples': None}

    small = compare._settings(None, 'resnet50', nothing, 8, 1, 0)
    assert (small.devices, small.threads) == (4, 8)
    assert (small.batchsize, small.pipeline_batchsize, small.samples) == (64, 64, 256)
    asked = compare._settings(3, 'resnet50', {'batchsize': 96, 'samples': 500, 'test_samples': 50}, 8, 1, 0)
    assert (asked.devices, asked.batchsize, asked.pipeline_batchsize, asked.samples) == (3, 96, 96, 500)

    monkeypatch.setattr(machine, 'gpus', lambda: ['a GPU'])
    full = compare._settings(None, 'resnet50', nothing, 8, 1, 0)
    assert (full.devices, full.threads, full.batchsize, full.pipeline_batchsize) == (2, 0, 256, 512)
    assert (full.samples, full.test_samples) == (60_000, 10_000)


# The picture


@given(st.lists(st.lists(st.tuples(st.sampled_from('FRB'), st.integers(0, 9), st.floats(0, 9), st.floats(0, 9)),
                         max_size=4), min_size=1, max_size=3))
def test_a_timeline_survives_its_report(rows):
    timeline = Timeline(tuple(tuple(Span(Op(kind, stage, i), start, start + length) for kind, i, start, length in row)
                              for stage, row in enumerate(rows)), tuple(f'CPU {stage}' for stage in range(len(rows))))

    assert picture.read_timeline(json.loads(json.dumps(report.as_lists(timeline)))) == timeline


@pytest.mark.parametrize('missing', [(), ('plain',), ('gpipe', 'gpipe-recompute'), KEYS])
def test_the_picture_is_drawn_whoever_failed(tmp_path, missing):
    timeline = report.as_lists(Timeline(((Span(Op('F', 0, 0), 0.0, 1.0),),), ('CPU 0',)))
    told = {'samples_per_second': 2.0, 'timeline': timeline,
            'memory': [{'name': 'CPU 0', 'allocated': 2, 'peak': 3, 'parameters': 1}]}
    results = [Result(one, None if one.key in missing else told) for one in contestants.contestants(SETTINGS, [11, 11])]
    picture.draw(results, None if 'plain' in missing else results[0], tmp_path / 'compare.png', 'a heading')

    assert (tmp_path / 'compare.png').read_bytes().startswith(b'\x89PNG')


# All of it


@pytest.mark.slow
def test_compare_from_end_to_end(tmp_path):
    run = subprocess.run(
        [sys.executable, '-m', 'fewgpu.workshop', 'compare', '--arch', 'resnet18', '--samples', '24',
         '--batchsize', '8', '--num_microbatches', '4', '--test_samples', '16', '--devices', '2', '--out', 'out'],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    assert run.returncode == 0, run.stdout
    stored = json.loads((tmp_path / 'out' / 'compare.json').read_text())
    told = {one['key']: one['report'] for one in stored['contestants']}
    assert not [one['failure'] for one in stored['contestants'] if one['failure']]
    assert (tmp_path / 'out' / 'compare.png').stat().st_size > 10_000
    assert stored['machine']['cores'] == machine.cores()

    pipelines = [told[key] for key in told if not key.startswith('plain')]
    assert len({tuple(one['balance']) for one in pipelines}) == 1
    # What is computed does not depend on who computes it: naive is plain, and all GPipes are one.
    assert told['model-parallel']['loss'] == pytest.approx(told['plain']['loss'], rel=1e-3)
    assert told['gpipe']['loss'] == pytest.approx(told['gpipe-recompute']['loss'], rel=1e-3)
    assert told['torchgpipe']['loss'] == pytest.approx(told['gpipe']['loss'], rel=1e-2)
    for one in stored['contestants']:
        assert one['command'] in run.stdout
        assert f"{one['report']['loss']:.3f}" in run.stdout


def invoke(*flags):
    return CliRunner().invoke(workshop.build(['compare']), ['compare', *flags])


@pytest.mark.parametrize('flags, sentence', [
    (['--only', 'plain,nobody'], 'there is no nobody'), (['--balance_by', 'luck'], 'must be time, memory'),
    (['--arch', 'alexnet'], "there is no network 'alexnet'"), (['--devices', '1'], '2'),
    (['--balance_by', '7,7', '--devices', '3'], 'let them agree'), (['--samples', '70000'], '60000')])
def test_a_mistake_on_the_command_line_is_one_sentence_at_once(tmp_path, flags, sentence):
    run = invoke(*flags, '--out', str(tmp_path / 'out'))

    assert run.exit_code == 2
    assert sentence in ' '.join(run.output.replace('│', ' ').split())
    assert not list(tmp_path.iterdir())


def test_a_balance_that_does_not_fit_the_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, 'two_core_efficiency', lambda threads: 1.0)
    run = invoke('--arch', 'resnet18', '--balance_by', '3,4', '--out', str(tmp_path / 'out'))

    assert run.exit_code == 2 and 'balance' in run.output


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / 'out').write_text('a file')
    run = invoke('--out', str(tmp_path / 'out'))

    assert run.exit_code == 2 and 'cannot write to' in run.output


@pytest.mark.parametrize('gpus, expected', [(1, '2 stages share 1 GPU'), (2, 'NVIDIA')])
def test_with_gpus_the_whole_set_is_trained_on_and_sharing_is_said(tmp_path, monkeypatch, gpus, expected):
    monkeypatch.setattr(machine, 'gpus', lambda: ['NVIDIA H100'] * gpus)
    started = []
    monkeypatch.setattr(compare, 'run', lambda one, folder: started.append(one) or Result(one, failure='not here'))
    run = invoke('--balance_by', '11,11', '--out', str(tmp_path / 'out'))

    assert run.exit_code == 1 and expected in run.output
    assert [one.key for one in started] == [key for key in KEYS if key != 'plain-all']
    sizes = {one.key: one.arguments[one.arguments.index('--batchsize') + 1] for one in started}
    assert sizes == {'plain': '256', 'model-parallel': '256', 'gpipe-recompute': '512', 'gpipe': '512',
                     'torchgpipe': '512'}
    assert all(one.arguments[one.arguments.index('--samples') + 1] == '60000' for one in started)


@pytest.mark.parametrize('failing, code', [('torchgpipe', 0), ('gpipe', 1), ('', 0)])
def test_only_a_failure_of_our_own_makes_the_exit_code_a_failure(tmp_path, monkeypatch, failing, code):
    monkeypatch.setattr(machine, 'two_core_efficiency', lambda threads: 1.0)
    told = {'engine': 'fewgpu', 'batch': 1, 'chunks': 4, 'samples_per_second': 2.0, 'samples': 1, 'loss': 1.0,
            'accuracy': 0.5, 'test_samples': 9, 'memory': [], 'memory_how': 'so', 'busy_share': None,
            'busy_how': 'so', 'measured_steps': 1, 'balance': [9, 5], 'devices': ['CPU 0', 'CPU 1'], 'threads': 1,
            'timeline': None}
    monkeypatch.setattr(compare, 'run', lambda one, folder: Result(
        one, None if one.key == failing else told, 'no luck' if one.key == failing else ''))
    run = invoke('--arch', 'resnet18', '--balance_by', '9,5', '--out', str(tmp_path / 'out'))

    assert run.exit_code == code, run.output
    stored = json.loads((tmp_path / 'out' / 'compare.json').read_text())
    assert [one['key'] for one in stored['contestants'] if one['failure']] == [failing] * bool(failing)
    assert ('no luck' in run.output) == bool(failing)
