"""`./workshop.py plan`: what it prints and draws is what was predicted, and mistakes get one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from fewgpu.planner.cluster import amount, preset
from fewgpu.planner.known import KNOWN, known
from fewgpu.planner.search import fastest_first
from fewgpu.planner.ways import Task
from fewgpu.schedule import SCHEDULES
from fewgpu.workshop import __main__
from fewgpu.workshop.plan import assumed, described, show, speed, to_run
from fewgpu.workshop.plan_picture import KINDS, drawn, picture, timeline
from tests.pictures import faults

ROOT = Path(__file__).parents[1]


def run(*arguments, **environment):
    return CliRunner().invoke(__main__.build(['plan']), ['plan', *map(str, arguments)],
                              env={'COLUMNS': '120', **environment})


tasks = st.builds(lambda name, place, devices: Task(model := known(name), preset(place, devices=devices), model.batch),
                  st.sampled_from(sorted(KNOWN)), st.sampled_from(('v100-16', 'a100-80', 'rtx3090-24')),
                  st.sampled_from((1, 3, 8, 64, 1000)))


@settings(max_examples=15, deadline=None)
@given(tasks)
def test_every_way_is_in_the_table_with_its_speed_memory_and_reason(task):
    console = Console(record=True, width=400, file=open('/dev/null', 'w'))
    ranked = fastest_first(task)
    show(console, task, ranked)
    lines = console.export_text().splitlines()
    for one in ranked:
        row, reason = (line for line in lines if line.startswith(f'{one.name}  '))
        assert amount(one.memory_bytes) in row and described(one) in row and one.why in reason
        assert (f' {speed(one)} ' in row) == one.fits and ('does not fit' in row) != one.fits


@settings(max_examples=8, deadline=None)
@given(tasks)
def test_the_picture_can_be_read(task):
    ranked = fastest_first(task)
    if ranked[0].fits:
        assert faults(picture(ranked)) == []


@settings(max_examples=20, deadline=None)
@given(tasks)
def test_bars_show_every_part_of_a_step_once(task):
    shown = [part for names in KINDS.values() for part in names]
    assert len(shown) == len(set(shown))
    for one in fastest_first(task):
        assert set(one.parts) <= set(shown)


@settings(max_examples=8, deadline=None)
@given(tasks)
def test_a_drawn_step_takes_as_long_as_predicted(task):
    """Or a little less long: stages and messages that differ overlap better than the closed form says."""
    for one in fastest_first(task):
        if one.fits and one.knobs.schedule == '1f1b' and drawn(one) == one.knobs.chunks(task.batch):
            schedule = timeline(one)
            if schedule:
                predicted = one.step - one.parts['data link']
                late = 1.01 if one.parts['stage link'] < one.parts['compute'] else 1.2   # messages longer than slots
                assert 0.6 * predicted < schedule.makespan < late * predicted, one


@settings(max_examples=8, deadline=None)
@given(tasks)
def test_the_kit_is_asked_to_draw_what_it_can(task):
    for one in fastest_first(task):
        said = to_run(one)
        if './workshop.py draw' in said:
            words = said.split()
            name = words[words.index('draw') + 1]
            SCHEDULES[name](one.knobs.stages, 4 * one.knobs.stages)
            assert f'--stages {one.knobs.stages} ' in said


def test_json_holds_every_way(tmp_path):
    result = run('--model', 'resnet50', '--gpus', 4, '--json', '--out', tmp_path)
    assert result.exit_code == 0, result.output
    task = Task(known('resnet50'), preset('v100-16', devices=4), 2048)
    assert [(one['way'], one['samples_per_second']) for one in json.loads(result.stdout)] == [
        (one.name, one.samples_per_second) for one in fastest_first(task)]
    assert not list(tmp_path.iterdir())


def test_flags_change_the_cluster():
    flags = {'--memory': '80GB', '--bandwidth': '100Gbit/s', '--inside': '600GB/s', '--per-server': 4, '--latency': 2,
             '--tflops': 300, '--efficiency': 0.5, '--host-bandwidth': '25GB/s', '--host-memory': '1TB',
             '--disk-bandwidth': '3GB/s'}
    result = run('--model', 'gpt-2.2B', '--gpus', 16, '--batch', 100, '--json',
                 *(word for pair in flags.items() for word in pair))
    cluster = preset('v100-16', devices=16, memory=80e9, between=12.5e9, inside=600e9, per_server=4, latency=2e-6,
                     flops=300e12, efficiency=0.5, host_bandwidth=25e9, host_memory=1e12, disk_bandwidth=3e9)
    assert [one['step_seconds'] for one in json.loads(result.stdout)] == [
        one.step for one in fastest_first(Task(known('gpt-2.2B'), cluster, 100))]


def test_stale_ways_can_be_left_out():
    names = [one['way'] for one in json.loads(run('--gpus', 8, '--no-stale', '--json').stdout)]
    assert names and not any(name.startswith('2BW') for name in names)


def test_a_picture_is_written(tmp_path):
    result = run('--gpus', 64, '--out', tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / 'plan-gpt-2.2B-64.png').stat().st_size > 1000


def test_where_nothing_fits_nothing_wins(tmp_path):
    result = run('--gpus', 1, '--memory', '1GB', '--model', 'gpt-175B', '--out', tmp_path)
    assert result.exit_code == 0 and 'No way fits' in result.output and 'Fastest' not in result.output


@pytest.mark.parametrize('flags, said', [
    (['--model', 'gpt-9'], 'there is no model'), (['--model', 'no.py:f'], 'FILE.py:FUNCTION'),
    (['--gpus', 0], '--gpus'),
    (['--memory', '16'], 'amount of memory'), (['--bandwidth', '10Gb/s'], 'bits or bytes'),
    (['--cluster', 'x'], 'there is no cluster'), (['--batch', 0], 'at least one sample'),
    (['--precision', 'int8'], 'mixed or fp32'), (['--efficiency', 2], 'efficiency'),
    (['--per-server', 0], 'per_server'),
    (['--tflops', -1], 'flops'), (['--latency', -1], 'latency')])
def test_a_wrong_flag_gets_a_sentence(flags, said):
    result = run(*flags)
    assert result.exit_code == 2 and said in ' '.join(result.output.replace('│', ' ').split())


def test_help_and_named_models_import_no_torch():
    code = ("import sys; from fewgpu.workshop.__main__ import build; import fewgpu.workshop.plan as plan;"
            "plan.fastest_first(plan.make('gpt-2.2B', 'v100-16', None, 'mixed', {'devices': 8}));"
            "print('torch' in sys.modules)")
    said = subprocess.run([sys.executable, '-c', code], env={**os.environ, 'PYTHONPATH': str(ROOT / 'lib')},
                          capture_output=True, text=True, check=True).stdout
    assert said.strip() == 'False'


def test_a_model_of_ones_own_is_planned(tmp_path):
    path = tmp_path / 'nets.py'
    path.write_text('import torch\nfrom torch import nn\ndef mine():\n'
                    '    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(4, 64)\n')
    result = run('--model', f'{path}:mine', '--gpus', 2, '--out', tmp_path)
    assert result.exit_code == 0 and 'mine (3 layers)' in result.output and (tmp_path / 'plan-mine-2.png').exists()


@pytest.mark.parametrize('flag', ('--latency', '--tflops', '--efficiency'))
@pytest.mark.parametrize('value', ('inf', 'nan'))
def test_a_cluster_has_finite_figures(flag, value):
    result = run('--model', 'resnet50', flag, value)
    assert result.exit_code == 2 and 'finite' in result.output


FLAGS = {'--bandwidth': ('1GB/s', '25Gbit/s'), '--inside': ('1GB/s',), '--latency': (9,), '--per-server': (1, 8),
         '--memory': ('40GB', '16GB'), '--tflops': (200,), '--efficiency': (0.3,), '--host-bandwidth': ('1GB/s',),
         '--host-memory': ('9TB', '20GB'), '--disk-bandwidth': ('9GB/s',)}


def planned(*words) -> tuple[list, set[str]]:
    """The ways (without their sentences), and the flags of which it is said that they change nothing."""
    result = run('--json', *words)
    assert result.exit_code == 0, result.output
    named = {line.split()[0] for line in result.stderr.splitlines() if 'changes nothing' in line}
    return [{**one, 'why': ''} for one in json.loads(result.stdout)], named


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(('resnet50', 'gpt-2.2B')), st.sampled_from((1, 2, 8, 16)), st.sampled_from(('mixed', 'fp32')),
       st.lists(st.sampled_from(sorted(FLAGS)), min_size=1, max_size=3, unique=True), st.data())
def test_exactly_those_flags_are_named_that_change_nothing(model, gpus, precision, flags, data):
    given_ = {flag: data.draw(st.sampled_from(FLAGS[flag])) for flag in flags}
    task = '--model', model, '--gpus', gpus, '--precision', precision
    ranked, named = planned(*task, *(word for pair in given_.items() for word in pair))
    for flag in flags:
        rest = planned(*task, *(word for pair in given_.items() if pair[0] != flag for word in pair))[0]
        assert (flag in named) == (rest == ranked), flag


@pytest.mark.parametrize('flags, said', [
    (('--gpus', 8, '--bandwidth', '1GB/s'), 'one server'), (('--gpus', 1, '--latency', 9), 'no messages'),
    (('--gpus', 1, '--per-server', 2), 'one device'), (('--gpus', 8, '--host-memory', '9TB'), 'the same without it'),
    (('--gpus', 8, '--per-server', 8), 'what v100-16 has')])
def test_it_is_said_why_a_flag_changes_nothing(flags, said):
    assert said in run('--model', 'resnet50', '--json', *flags).stderr


def test_the_header_names_the_cluster_and_whether_it_was_changed():
    place = preset('a100-80', devices=4)
    task = Task(known('resnet50'), place, 64)
    assert 'Cluster a100-80: 4 devices' in assumed(task, 'a100-80')[1]
    changed = Task(task.model, preset('a100-80', devices=4, memory=1e10), 64)
    assert 'Cluster a100-80, changed: 4 devices' in assumed(changed, 'a100-80')[1]


def test_a_layer_that_calls_exit_gets_a_sentence(tmp_path):
    path = tmp_path / 'nets.py'
    path.write_text('import torch\nfrom torch import nn\nclass Out(nn.Module):\n    def forward(self, x):\n'
                    '        raise SystemExit(3)\ndef mine():\n    return nn.Sequential(Out()), torch.randn(4, 2)\n')
    result = run('--model', f'{path}:mine')
    assert result.exit_code == 2 and 'does not run' in result.output


def test_frozen_parameters_are_said(tmp_path):
    path = tmp_path / 'nets.py'
    path.write_text('import torch\nfrom torch import nn\ndef mine():\n'
                    '    layers = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))\n'
                    '    layers[0].requires_grad_(False)\n    return layers, torch.randn(4, 4)\n')
    result = run('--model', f'{path}:mine', '--out', tmp_path)
    assert result.exit_code == 0 and '25 parameters frozen' in ' '.join(result.output.split())


@given(st.floats(0.001, 1e9))
def test_a_speed_is_written_in_figures_that_people_read(rate):
    one = SimpleNamespace(samples_per_second=rate)
    assert 'e' not in speed(one) or rate < 0.01
    assert abs(float(speed(one).replace(',', '')) - rate) <= 0.0006 * rate
