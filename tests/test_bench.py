"""The pipeline benchmark: its arithmetic, and that it leaves no process behind. No speeds."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from fewgpu.device import one_thread
from tests.bench import pipeline, report, schedules, systems
from tests.bench.memory import peaks
from tests.bench.processes import ROOT, processes
from tests.bench.ratios import Ratio
from tests.bench.stats import Summary, interval_rank, paired_ratios
from tests.bench.work import Failed, Work, disagreement
from tests.pipes import alive, settled

on_posix = pytest.mark.skipif(os.name != 'posix', reason='signals and process ids of POSIX')
POSITIVE = st.floats(1e-3, 1e3)


@pytest.mark.parametrize('n', range(1, 11))
def test_the_coverage_of_the_interval_is_that_of_all_ways_to_fall_round_the_median(n):
    k, coverage = interval_rank(n)
    # Each value is below the true median (True) or above it; the interval holds the median unless
    # fewer than k values lie on one side.
    holds = [k <= sum(below) <= n - k for below in itertools.product((False, True), repeat=n)]
    assert coverage == pytest.approx(sum(holds) / len(holds))


@given(st.lists(POSITIVE, min_size=1, max_size=30), st.data())
def test_a_summary_is_ordered_and_does_not_depend_on_the_order_of_the_rounds(values, data):
    summary = Summary.of(values)
    assert (summary.smallest <= summary.low <= summary.median <= summary.high <= summary.largest)
    assert {summary.low, summary.high, summary.smallest, summary.largest} <= set(values)
    assert Summary.of(data.draw(st.permutations(values))) == summary


@given(st.lists(st.tuples(POSITIVE, POSITIVE, POSITIVE), min_size=1, max_size=10))
def test_a_slow_round_does_not_change_its_paired_ratio(rounds):
    base, values, slower = zip(*rounds)
    disturbed = paired_ratios([v * s for v, s in zip(values, slower)],
                              [b * s for b, s in zip(base, slower)])
    assert disturbed == pytest.approx(paired_ratios(values, base))


def test_rounds_that_do_not_match_are_not_paired():
    with pytest.raises(ValueError, match='2 and 1 rounds cannot be paired'):
        paired_ratios([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match='at least one round'):
        Summary.of([])


@pytest.mark.parametrize(('low', 'high', 'coverage', 'verdict'), [
    (1.5, 1.7, 0.94, 'met'), (1.4, 1.49, 0.94, 'fell short'), (1.4, 1.6, 0.94, 'undecided'),
    (1.6, 1.6, 0.0, 'too few rounds')])
def test_a_verdict_needs_enough_rounds_and_the_whole_interval_on_one_side(low, high, coverage,
                                                                         verdict):
    summary = Summary((low + high) / 2, low, high, coverage, low, high)
    assert Ratio('a / b', 'never', 1.5, summary).verdict == verdict
    assert Ratio('a / b', 'never', None, summary).verdict == ''


@given(st.floats(1e-6, 1.0), st.integers(1, 5))
def test_the_disagreement_is_the_relative_error_of_the_worst_gradient(error, size):
    reference = {'a': torch.ones(size, dtype=torch.float64), 'b': torch.ones(3).double()}
    off = {**reference, 'a': reference['a'] * (1 + error)}
    assert disagreement(off, reference) == pytest.approx(error)
    assert disagreement(reference, reference) == 0.0


@pytest.mark.parametrize('wrong', [{}, {'a': torch.tensor([float('nan')])}])
def test_a_missing_gradient_or_one_that_is_no_number_is_an_infinite_disagreement(wrong):
    assert disagreement(wrong, {'a': torch.ones(1)}) == float('inf')


def tiny_work(chunks: int = 4) -> Work:
    """Milliseconds of work, in the shape of a ResNet's."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                          nn.AvgPool2d(4), nn.Flatten(), nn.Linear(196, 10))
    return Work(model, torch.randn(8, 1, 28, 28), torch.randint(10, (8,)), chunks, [3, 3])


def test_micro_batches_of_unequal_size_are_refused():
    with pytest.raises(ValueError, match='choose --chunks that divides --batch'):
        tiny_work(chunks=3)


@pytest.mark.slow   # torch needs seconds for its first operation that is watched
def test_metered_peaks_hold_parameters_and_recompute_lowers_them():
    work = tiny_work()
    found = {(peak.engine, peak.checkpoint): peak for peak in peaks(work)}
    own = sum(t.numel() * t.element_size()
              for t in [*work.model.parameters(), *work.model.buffers()])
    assert {peak.parameters for peak in found.values()} == {own}
    assert all(peak.peak > own for peak in found.values())
    for engine in ('fewgpu', 'torchgpipe'):
        assert found[engine, 'except_last'].peak < found[engine, 'never'].peak
    assert all(parameter.grad is None for parameter in work.model.parameters())


@pytest.fixture(scope='module')
def found(tmp_path_factory):
    """A whole benchmark of the tiny network; measured once, for the tests that look at it."""
    folder = tmp_path_factory.mktemp('bench')
    console = Console(file=(folder / 'printed.txt').open('w'), width=140)
    with one_thread():
        work = tiny_work()
        found = pipeline.compete(work, 2, console)
    options = pipeline.Options(2, 'tiny', 8, 4, 2, (3, 3), 0, str(folder))
    found |= {'options': dataclasses.asdict(options), 'machine': pipeline.surroundings(),
              'balance': work.balance,
              'memory': [dataclasses.asdict(peak) for peak in peaks(work)]}
    report.show(found, console)
    report.write(found, folder, console)
    console.file.close()
    return found, folder


@pytest.mark.slow
def test_every_contestant_is_measured_in_every_round_and_computes_the_same(found):
    found, _ = found
    engines = ('fewgpu', 'torchgpipe', 'torch.distributed.pipelining', 'one stage at a time')
    names = {f'{engine} {mode}' for engine in engines for mode in ('never', 'except_last')}
    names.add('plain (one core) never')
    assert found['errors'].keys() == names
    assert max(found['errors'].values()) <= pipeline.TOLERANCE
    assert len(found['rounds']) == 2
    for measured in found['rounds']:
        assert measured['seconds'].keys() == names
        assert min(measured['seconds'].values()) > 0
        for mode in ('never', 'except_last'):
            bound = measured['bound'][mode]
            assert bound['alone'] / 2 <= bound['makespan'] <= bound['alone']


@pytest.mark.slow
def test_tables_file_and_picture_tell_the_same_rounds(found):
    found, folder = found
    printed = (folder / 'printed.txt').read_text()
    stored = json.loads((folder / 'bench_pipeline.json').read_text())
    assert stored['rounds'] == found['rounds']
    for row in stored['ratios']:
        assert row['what'] in printed
        assert f'{row["summary"]["median"]:.3f}' in printed
    first = next(row for row in stored['ratios'] if row['what'] == 'fewgpu / torchgpipe')
    assert first['summary']['largest'] == max(
        measured['seconds']['torchgpipe never'] / measured['seconds']['fewgpu never']
        for measured in found['rounds'])
    assert (folder / 'bench_pipeline.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
@on_posix
def test_an_error_in_the_benchmark_ends_the_processes():
    with pytest.raises(KeyboardInterrupt):
        with processes(tiny_work()) as peer:
            pids = peer.pids()
            raise KeyboardInterrupt
    assert len(pids) == 2
    assert not any(map(alive, pids))


@pytest.mark.slow
@on_posix
def test_a_process_that_dies_is_named_and_takes_the_others_down():
    with pytest.raises(Failed, match='process 1 of torch.distributed.pipelining ended by itself'):
        with processes(tiny_work()) as peer:
            pids = peer.pids()
            peer.ask('forget')
            os.kill(pids[1], signal.SIGTERM)
            peer.ask('step', checkpoint='never')
    assert not any(map(alive, pids))


@pytest.mark.slow
@on_posix
def test_a_killed_benchmark_leaves_no_process_behind():
    killed = subprocess.run([sys.executable, '-c', textwrap.dedent('''
        import os, signal
        from tests.bench.processes import processes
        from tests.test_bench import tiny_work
        with processes(tiny_work()) as peer:
            peer.ask('forget')
            print(*peer.pids(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        ''')], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), str(ROOT / 'lib')])})
    pids = [int(pid) for pid in killed.stdout.split()]
    assert killed.returncode == -signal.SIGKILL
    assert len(pids) == 2
    assert settled(lambda: not any(map(alive, pids)), 30)


@pytest.mark.slow
def test_schedules_are_compared_on_ranks_only_if_their_gradients_agree(monkeypatch) -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    job = schedules.Job('tiny', model, torch.rand(8, 16), torch.randint(16, (8,)), 4, [2, 2], [2, 2])
    found = schedules.measure(job, rounds=2, repeat=1)
    assert len(found['seconds']) == 2 * 3   # schedules, contestants
    assert all(len(taken) == 2 and min(taken) > 0 for taken in found['seconds'].values())
    parameters = 2 * (16 * 16 + 16) * 4
    assert all(peak >= parameters for peaks in found['peaks'].values() for peak in peaks)

    class Other(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1 + torch.rand(()))   # drawn otherwise by each contestant

    with pytest.raises(Failed, match='computes something else'):
        schedules.measure(dataclasses.replace(job, model=nn.Sequential(Other(16, 16), *model[1:])), 1, 1)


@pytest.mark.slow
def test_systems_are_compared_only_if_their_losses_agree(tmp_path: Path) -> None:
    options = systems.Options(rounds=1, arch='gpt', batch=1, ranks=2, steps=1, seed=0, results=str(tmp_path))
    found = systems.run(options)
    assert json.loads((tmp_path / 'bench_systems.json').read_text())['rounds'] == found['rounds']
    assert all(seconds > 0 for seconds in found['rounds'][0]['seconds'].values())
    states = 16 * found['parameters']   # bytes of Adam's training in float32; activations come on top
    for name, share in ((systems.ZERO[1], 1 / 2), (systems.ZERO[3], 1 / 2), (systems.OURS, 1), (systems.DDP, 1)):
        assert share * states <= found['peaks'][0][name] <= 2 * states, name
    with pytest.raises(Failed, match='torch DDP computes something else'):
        systems._agree({systems.OURS: lambda: 1.0, systems.DDP: lambda: 1.1})
