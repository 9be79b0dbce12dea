"""Traces of real ranks: what each saved is, merged, what gather_trace shows of the same step on one clock."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fewgpu import DataParallel, Pipeline, get_devices, launch
from fewgpu.causes import Causes
from fewgpu.critical_path import critical_path
from fewgpu.hybrid import parallelize
from fewgpu.replay import Replay
from fewgpu.schedule import SCHEDULES
from fewgpu.trace_advice import advise
from fewgpu.trace_figures import figures
from fewgpu.trace_merge import load
from tests.test_trace_command import run

ROUNDING = 1e-6   # seconds
PATIENCE = 500.0  # seconds: ranks take a minute to start on a machine that does other work


def layers(pairs: int, size: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(pairs) for layer in (nn.Linear(size, size), nn.Tanh())))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def spans_of(timeline) -> list[list[tuple]]:
    return [[(span.op, span.start, span.end) for span in row] for row in timeline.rows]


def piped(folder: str, schedule: str) -> list[list[tuple]]:
    """A few steps on all ranks, the last one saved and gathered."""
    size = dist.get_world_size()
    held = 2 if schedule == 'interleaved' else 1
    pipe = Pipeline(layers(size * held), [2] * size * held, schedule=schedule, chunks=4,
                    loss_fn=nn.functional.mse_loss, optimizer=sgd, time_limit=PATIENCE)
    x = torch.rand(64, 32)
    for _ in range(3):
        pipe.step(x, x)
    gathered = pipe.gather_trace()
    assert Path(pipe.save_trace(folder)).name == f'rank-{dist.get_rank()}.json'
    pipe.close()
    return spans_of(gathered)


def averaged(folder: str) -> None:
    """Two steps of two backwards each; nothing is noted unless it was asked for."""
    model = DataParallel(layers(3), trace=True, bucket_mb=0.005, time_limit=PATIENCE)
    with pytest.raises(ValueError, match='no trace yet'):
        model.save_trace(folder)
    with pytest.raises(RuntimeError, match='trace=True'):
        DataParallel(layers(1), time_limit=PATIENCE).save_trace(folder)
    optimizer, x = sgd(model.parameters()), torch.rand(16, 32)
    for _ in range(2):
        for last in (False, True):
            with contextlib.nullcontext() if last else model.no_sync():
                (model(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x)   # no part of a step
    model.save_trace(folder)
    with model.join():   # who is through follows the others, also when they compare their clocks
        for _ in range(1 + dist.get_rank()):
            model(x).square().mean().backward()
    if dist.get_rank() == 0:
        with pytest.raises(ValueError, match='with rows on every rank'):
            model.save_trace(f'{folder}/joined')
    model(x).square().mean().backward()   # a step of both again, whose number is the same
    model.save_trace(f'{folder}/joined')
    with pytest.raises(ValueError, match='trace=True'):
        DataParallel(layers(1), trace=dist.get_rank() == 0, time_limit=PATIENCE)


def replicated(folder: str) -> list[list[tuple]]:
    pipe = parallelize(layers(4), '2x2', loss_fn=nn.functional.mse_loss, optimizer=sgd, chunks=4,
                       time_limit=PATIENCE)
    for _ in range(3):
        pipe.step(torch.rand(32, 32), torch.rand(32, 32))
    pipe.save_trace(folder)
    return [[(span.op, span.start, span.end) for span in row] for row in pipe.trace.rows if row]


def on_two(folder: str) -> dict:
    seen = {name: piped(f'{folder}/{name}', name) for name in ('1f1b', 'interleaved')}
    averaged(f'{folder}/averages')
    return seen


def on_four(folder: str) -> dict:
    return {'gpipe': piped(f'{folder}/gpipe', 'gpipe'), 'hybrid': replicated(f'{folder}/hybrid')}


@pytest.fixture(scope='module')
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp('two')
    return folder, launch(on_two, ranks=2, args=(str(folder),), time_limit=PATIENCE)[0]


@pytest.fixture(scope='module')
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp('four')
    return folder, launch(on_four, ranks=4, args=(str(folder),), time_limit=PATIENCE)


def verify_clocks(clocks):
    """All these ranks have the same clock: that of this machine."""
    assert not clocks.unknown and clocks.drift < ROUNDING
    for offset, unsure in zip(clocks.offsets, clocks.uncertainties):
        assert abs(offset) <= unsure + ROUNDING


def verify_like_gathered(folder, gathered):
    merged = load([folder])
    clocks = merged.clocks
    verify_clocks(clocks)
    assert [[op for op, *_ in row] for row in gathered] == [[span.op for span in row] for row in merged.timeline.rows]
    first = min(span.start for row in merged.timeline.rows for span in row[:1])
    assert first == 0.0
    for row, true in zip(merged.timeline.rows, gathered):
        for span, (_, start, end) in zip(row, true):
            assert abs(span.start - start) <= 2 * clocks.uncertainty + ROUNDING
            assert span.seconds == pytest.approx(end - start, abs=ROUNDING)
    return merged


def verify_explained(merged):
    """Every message has both ends, the path covers the step, and a replay without a change is the step."""
    causes = Causes(merged)
    for number, span in enumerate(causes.spans):
        if span.op.kind == 'recv' and 0 <= span.op.message.source < merged.schedule['stages']:
            sender = causes.sender[number]
            assert sender >= 0 and causes.spans[sender].start <= causes.arrived[number] + ROUNDING
    path = critical_path(causes)
    assert sum(link.seconds for link in path) == pytest.approx(merged.timeline.makespan, abs=ROUNDING)
    assert Replay(causes).ends() == pytest.approx([span.end for span in causes.spans], abs=ROUNDING)
    assert all(one.factor > 1.0 for one in advise(causes))
    one = figures(causes)
    assert 0.0 < one.bubble < 1.0 and one.imbalance >= 1.0
    return path


@pytest.mark.slow
@pytest.mark.parametrize('name', ['1f1b', 'interleaved'])
def test_two_ranks_saved_what_they_gathered(two, name):
    folder, seen = two
    merged = verify_like_gathered(folder / name, seen[name])
    verify_explained(merged)
    between = [size for row, sizes in zip(merged.timeline.rows, merged.sizes) for size in sizes.values()]
    messages = sum(span.op.kind == 'send' and 0 <= span.op.message.stage < merged.schedule['stages']
                   for row in merged.timeline.rows for span in row)
    assert len(between) == messages and min(between) >= 16 * 32 * 4   # a micro-batch's activations

    result = run(folder / name)
    assert result.exit_code == 0 and f'{name}: 2 ranks' in result.output, result.output


@pytest.mark.slow
def test_four_ranks_saved_what_they_gathered(four):
    folder, seen = four
    merged = verify_like_gathered(folder / 'gpipe', seen[0]['gpipe'])
    path = verify_explained(merged)
    assert {link.row for link in path} == {0, 1, 2, 3}   # down all stages, and up again


@pytest.mark.slow
def test_replicas_meet_in_their_updates(four, tmp_path):
    folder, seen = four
    merged = load([folder / 'hybrid'])
    verify_explained(merged)
    assert merged.pipelines == ((0, 1), (0, 1), (2, 3), (2, 3)) and not merged.clocks.unknown
    for row, rank in zip(merged.timeline.rows, seen):
        own, = rank['hybrid']
        assert [span.op for span in row] == [op for op, *_ in own]
    for stage in (0, 1):
        updates = [span for row in merged.timeline.rows for span in row
                   if span.op.kind == 'U' and span.op.stage == stage]
        assert len(updates) == 2
        assert min(span.end for span in updates) >= max(span.start for span in updates) - 2 * merged.clocks.uncertainty

    result = run(folder / 'hybrid', '--chrome', tmp_path / 'a.json')
    assert result.exit_code == 0 and '4 ranks in 2 pipelines' in result.output, result.output


@pytest.mark.slow
def test_data_parallel_ranks_saved_their_latest_step(two):
    folder, _ = two
    merged = load([folder / 'averages'])
    verify_explained(merged)
    assert merged.timeline.names == ('rank 0', 'rank 0 link', 'rank 1', 'rank 1 link')
    verify_clocks(merged.clocks)
    for work, link in zip(merged.timeline.rows[::2], merged.timeline.rows[1::2]):
        assert [str(span.op)[:2] for span in work] == ['F0', 'B0', 'F1', 'B1', 'M1', 'U0']   # M: it waits
        averages = [span.op.micro_batch for span in link if span.op.kind == 'A']
        assert averages == [*range(len(averages))] and len(averages) >= 3   # rows, then several buckets
    for one, other in zip(merged.timeline.rows[1], merged.timeline.rows[3], strict=True):
        if one.op.kind == 'A':   # nobody is through before all have begun
            assert min(one.end, other.end) >= max(one.start, other.start) - 2 * merged.clocks.uncertainty

    verify_clocks(load([folder / 'averages' / 'joined']).clocks)
    result = run(folder / 'averages')
    assert result.exit_code == 0 and 'data parallel: 2 ranks' in result.output, result.output


@pytest.mark.slow
def test_threads_save_all_their_devices_in_one_file(tmp_path):
    pipe = Pipeline(layers(2), [2, 2], schedule='gpipe', chunks=2, checkpoint='always', optimizer=sgd,
                    loss_fn=nn.functional.mse_loss, devices=get_devices(2, kind='cpu', latency=1e-3))
    with pytest.raises(ValueError, match='no trace yet'):
        pipe.save_trace(tmp_path)
    pipe.step(torch.rand(8, 32), torch.rand(8, 32))
    pipe.save_trace(tmp_path)
    merged = verify_like_gathered(tmp_path, spans_of(pipe.trace))
    path = verify_explained(merged)
    assert all(link.seconds >= 1e-3 for link in path if link.kind == 'message')   # the latency of the link
    assert 'gpipe: 2 devices' in run(tmp_path).output and 'gpipe' in SCHEDULES
