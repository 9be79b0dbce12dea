"""The table of the compare command, and what it concludes: every figure, and nothing that was not measured."""

import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fewgpu.workshop import contestants, table
from fewgpu.workshop.conclusions import ENOUGH, TIE, conclusions
from fewgpu.workshop.contestants import Result, Settings

SETTINGS = Settings(arch='resnet50', devices=2, batchsize=64, pipeline_batchsize=64, num_microbatches=8,
                    samples=256, test_samples=64, epochs=1, seed=0, threads=2)
share = st.floats(0.0, 1.0)


@st.composite
def reports(draw, contestant, stages, gpu):
    """What a contestant's script might report."""
    piped = contestant.script == contestants.GPIPE
    names = [f"{'GPU' if gpu else 'CPU'} {index}" for index in range(stages if piped else 1)]
    memory = [(name, draw(st.integers(1, 10**9)), draw(st.integers(0, 10**11)), draw(st.integers(0, 10**10)))
              for name in names]
    return {
        'engine': 'torchgpipe' if contestant.peer else 'fewgpu' if piped else 'plain',
        'arch': 'resnet50', 'batch': draw(st.integers(1, 1024)), 'chunks': draw(st.integers(1, 64)) if piped else 1,
        'balance': draw(st.lists(st.integers(1, 30), min_size=stages, max_size=stages)) if piped else [22],
        'checkpoint': None, 'devices': names, 'threads': 1, 'samples': 256,
        'samples_per_second': draw(st.floats(0.01, 99_999)), 'measured_steps': draw(st.integers(1, 900)),
        'loss': draw(st.floats(0.0, 9.9)), 'accuracy': draw(share), 'test_samples': draw(st.integers(1, 10_000)),
        'memory': [{'name': name, 'parameters': parameters, 'allocated': parameters + more,
                    'peak': parameters + more + most, 'reserved': 10**9 if gpu else None}
                   for name, parameters, more, most in memory],
        'memory_how': 'counted.', 'busy_share': draw(st.none() | st.just([draw(share) for _ in names])),
        'busy_how': 'by the clock', 'timeline': None, 'seed': 0, 'torch': '2'}


@st.composite
def results(draw, failing=True):
    """The outcome of a comparison; some contestants may have failed."""
    stages, gpu = draw(st.integers(2, 4)), draw(st.booleans())
    settings = Settings(**{**vars(SETTINGS), 'devices': stages, 'threads': 0 if gpu else stages})
    return [Result(one, failure=f'{one.key} is out of luck') if failing and draw(st.integers(0, 3)) == 0
            else Result(one, draw(reports(one, stages, gpu)))
            for one in contestants.contestants(settings, [1] * stages)]


def rendered(results, width=80):
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    console.print(table.tables(results, next((one for one in results if one.contestant.key == 'plain'), None)))
    return stream.getvalue()


# The table


@given(st.integers(1, 40), st.integers(1, 12))
def test_allowed_speed_up_is_what_a_pipeline_of_equal_stages_reaches(micro_batches, stages):
    end = [[0] * (stages + 1) for _ in range(micro_batches + 1)]
    for i, s in itertools.product(range(1, micro_batches + 1), range(1, stages + 1)):
        end[i][s] = max(end[i - 1][s], end[i][s - 1]) + 1   # a stage is free, and its input is there
    alone = micro_batches * stages

    assert table.allowed_speed_up(micro_batches, stages) == pytest.approx(alone / end[micro_batches][stages])


@given(results())
def test_the_table_contains_every_figure_of_every_report(results):
    lines = rendered(results, width=200).splitlines()
    plain = next(one for one in results if one.contestant.key == 'plain')
    speeds, _, memory = '\n'.join(lines).partition('Memory of every device')
    for result in results:
        row = next(line for line in speeds.splitlines() if line.startswith(f'{result.name} ')).split()
        if result.report is None:
            assert 'failed' in row and f'{result.name}: {result.failure}' in speeds
            continue
        told = result.report
        wanted = [f'{told["batch"]}', f'{told["loss"]:.3f}', f'{told["accuracy"]:.1%}',
                  *(f'{100 * share:.0f}' for share in told['busy_share'] or [])]
        if plain.report:
            wanted.append(f"{told['samples_per_second'] / plain.report['samples_per_second']:.2f}x")
        if told['engine'] != 'plain':
            allowed = table.allowed_speed_up(told['chunks'], len(told['balance']))
            wanted += [str(told['chunks']), ','.join(map(str, told['balance'])), f'{allowed:.2f}x']
        assert set(wanted) <= set(row)
        assert any(float(cell) == pytest.approx(told['samples_per_second'], abs=0.06)
                   for cell in row if re.fullmatch(r'\d+\.\d+', cell))
        for device in told['memory']:
            figures = {f'{device[what] / 1e9:.3f}' for what in ('allocated', 'peak', 'parameters')}
            figures.add(f"{(device['peak'] - device['parameters']) / 1e9:.3f}")
            assert any(device['name'] in line and figures <= set(line.split()) for line in memory.splitlines())


@given(results())
def test_the_table_fits_eighty_columns_without_colour_or_loss(results):
    text = rendered(results)

    assert max(map(len, text.splitlines())) <= 80
    assert '…' not in text and '\x1b' not in text


# The conclusions


@given(results(), st.none() | st.floats(0.3, 1.0))
def test_conclusions_are_about_those_that_have_figures(results, efficiency):
    text = ' '.join(conclusions(results, efficiency)).lower()

    absent = [one.prose.lower() for one in results if one.report is None and one.contestant.key != 'torchgpipe']
    assert not [prose for prose in absent if prose in text]
    assert bool(text) == any(one.report for one in results)


@given(results(failing=False))
def test_the_speed_ratios_in_the_conclusions_are_those_of_the_reports(results):
    by_key = {one.contestant.key: one for one in results}
    ratio = table.speed(by_key['gpipe']) / table.speed(by_key['plain'])
    first = next(text for text in conclusions(results) if 'bubble' in text)

    expected = 'was as fast as' if abs(ratio - 1) < TIE else f'was {ratio:.2f}x as fast as'
    assert f"{expected} {by_key['plain'].prose}" in first


@given(results(failing=False))
def test_what_small_micro_batches_cost_is_said_in_device_seconds(results):
    """Two devices, busy 75 and 90 %, at 15 samples/s: 0.11 s a sample. Plain at 10 samples/s: 0.1 s."""
    by_key = {one.contestant.key: one.report for one in results}
    by_key['plain']['samples_per_second'], by_key['gpipe']['samples_per_second'] = 10.0, 15.0
    by_key['gpipe']['busy_share'] = [0.75, 0.9]

    text = ' '.join(conclusions(results, efficiency=1.0))
    shared = len(set(by_key['gpipe']['devices'])) < len(by_key['gpipe']['balance'])
    assert ('computed 10% longer' in text) == (not shared)


@given(results(failing=False), share, share)
def test_a_plain_model_that_did_not_get_its_cores_makes_speeds_untrustworthy(results, one_core, all_cores):
    by_key = {one.contestant.key: one.report for one in results}
    got = {key: [busy] for key, busy in (('plain', one_core), ('plain-all', all_cores)) if key in by_key}
    for key, busy in got.items():
        by_key[key]['busy_share'] = busy

    starved = any(busy[0] < ENOUGH[key] for key, busy in got.items())
    assert ('Do not trust the speeds' in ' '.join(conclusions(results))) == starved


def test_stages_that_share_a_gpu_are_said_to_do_so():
    told = {'engine': 'fewgpu', 'batch': 1, 'chunks': 4, 'samples_per_second': 2.0, 'samples': 1, 'loss': 1.0,
            'accuracy': 0.5, 'test_samples': 9, 'memory': [], 'busy_share': None, 'measured_steps': 1}
    everyone = contestants.contestants(SETTINGS, [11, 11])
    results = [Result(one, told | {'balance': [11, 11], 'devices': ['GPU 0', 'GPU 0']}) for one in everyone]

    assert 'stages share a GPU' in ' '.join(conclusions(results))
