"""The search for the largest batch and the deepest ResNet that fit."""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu import GPipe, models
from fewgpu.workshop import limits
from fewgpu.workshop.arguments import parse, vary
from fewgpu.workshop.search import largest
from fewgpu.workshop.watch import Watch, devices_of

ROOT = Path(__file__).resolve().parents[1]


# The search alone, over curves of any shape


class Curve:
    """Peaks of every device by size (1 to `most`), as a search measures them; notes what it asked for."""

    def __init__(self, peaks: list[list[float]], limit: float, dies: bool) -> None:
        self.peaks, self.limit, self.dies = peaks, limit, dies
        self.asked: list[int] = []

    def __call__(self, size: int) -> list[float] | None:
        assert 1 <= size <= len(self.peaks)
        self.asked.append(size)
        peaks = self.peaks[size - 1]
        return None if self.dies and max(peaks) > self.limit else peaks

    @property
    def answer(self) -> int:
        return sum(max(peaks) <= self.limit for peaks in self.peaks)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """One to three devices, each a random staircase that never falls: mostly flat, or with huge steps."""
    most = draw(st.integers(1, 400))
    heights = st.lists(st.integers(0, 50), min_size=most, max_size=most)
    spiky = st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 1000]), min_size=most, max_size=most)
    columns = []
    for rises in draw(st.lists(st.one_of(heights, spiky), min_size=1, max_size=3)):
        total, column = 0, []
        for rise in rises:
            total += rise
            column.append(float(total))
        columns.append(column)
    top = max(column[-1] for column in columns)
    return Curve([list(row) for row in zip(*columns)], draw(st.floats(0, top + 1)), draw(st.booleans()))


@settings(max_examples=200)
@given(curves(), st.integers(1, 500), st.integers(1, 12))
def test_answer_is_right_whatever_the_curve(curve: Curve, start: int, step: int) -> None:
    most = len(curve.peaks)
    found = largest(curve, curve.limit, most=most, start=start, step=step)
    assert found == curve.answer
    assert {size for size in (found, found + 1) if 1 <= size <= most} <= set(curve.asked)   # both sides were measured
    assert len(curve.asked) == len(set(curve.asked))
    reach = max(found, min(start, most)) + 2
    assert len(curve.asked) <= 2 * math.log2(reach) + 5


@given(st.floats(0, 1e9), st.floats(1e3, 1e8), st.floats(0, 1e8), st.integers(1, 16), st.integers(1, 20_000))
def test_memory_of_a_training_step_needs_few_runs(weights: float, a_sample: float, a_micro: float, chunks: int,
                                                  fits: int) -> None:
    def peak(batch: int) -> list[float]:   # of a pipeline: a stash a sample, activations of one micro-batch
        return [weights + a_sample * batch + a_micro * math.ceil(batch / chunks)]

    asked: list[int] = []

    def measure(batch: int) -> list[float]:
        asked.append(batch)
        return peak(batch)

    limit = peak(fits)[0]
    found = largest(measure, limit, most=60_000, start=max(chunks, 4), step=chunks)
    assert max(peak(found)) <= limit < max(peak(found + 1))
    assert len(asked) <= math.log(60_000, 8) + 4 + 2 * math.log2(chunks + 1)


def test_nothing_fits_and_everything_fits() -> None:
    assert largest(lambda size: None, 1.0, most=60_000, start=8) == 0
    assert largest(lambda size: [0.0, 0.0], 1.0, most=60_000, start=8) == 60_000
    assert largest(lambda size: [0.5], 1.0, most=1, start=8) == 1


# The search by real training steps, on a network small enough to try every size


def script(args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, Watch]:
    """A small `build`: plain, or a pipeline of two stages."""
    devices = devices_of(args)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 10))
    if args.pipeline:
        model = GPipe(model, [2, 4], devices=devices, chunks=args.num_microbatches, checkpoint=args.checkpoint)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=args.momentum)
    return model, optimizer, Watch(model, devices, optimizer)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, meter: Watch, batches) -> float:
    for x, y in batches:
        with meter.step(len(x)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


def fits(args: argparse.Namespace, batch: int) -> bool:
    """Whether three steps of this size fit: one more than the search makes."""
    try:
        rows = torch.rand(batch, 1, 28, 28), torch.zeros(batch, dtype=torch.int64)
        train(*script(vary(args, batchsize=batch)), [rows] * 3)
    except torch.OutOfMemoryError:
        return False
    return True


@pytest.mark.skipif(torch.cuda.is_available(), reason='about virtual devices')
@settings(max_examples=8)
@given(st.booleans(), st.integers(500_000, 900_000), st.integers(1, 5), st.sampled_from(['always', 'except_last', 'never']),
       st.sampled_from(['0.0', '0.9']))
def test_found_batch_trains_and_a_larger_one_does_not(tmp_path_factory: pytest.TempPathFactory, pipeline: bool, limit: int,
                                                      chunks: int, checkpoint: str, momentum: str) -> None:
    report = tmp_path_factory.mktemp('find') / 'report.json'
    args = parse(None, pipeline=pipeline, arguments=[
        '--find_batchsize', '--memory_limit', str(limit), '--num_microbatches', str(chunks), '--checkpoint', checkpoint,
        '--momentum', momentum, '--devices', '2', '--balance_by', 'memory', '--report', str(report)])
    limits.find(args, script, train)
    found = json.loads(report.read_text())['find_batchsize']
    # What a stage has sent is its own until it is fetched, so the peak of a pipeline is not quite the same every time.
    below, above = (found * 4 // 5, found * 5 // 4 + 1) if pipeline else (found, found + 1)
    assert fits(args, below) and not fits(args, above)


@pytest.mark.skipif(torch.cuda.is_available(), reason='about virtual devices')
def test_too_small_a_limit_and_too_large_a_one_are_a_sentence() -> None:
    flags = ['--find_batchsize', '--memory_limit']
    with pytest.raises(SystemExit, match='Not even a batch of 1 fits 0 MB a device'):
        limits.find(parse(None, arguments=[*flags, '20000']), script, train)
    with pytest.raises(SystemExit, match='more than the .* GB of this machine'):
        limits.find(parse(None, arguments=[*flags, '1000000TB']), script, train)


@pytest.mark.skipif(torch.cuda.is_available(), reason='about virtual devices')
def test_depths_are_tried_as_flags_that_the_scripts_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[str] = []

    def build(args: argparse.Namespace) -> tuple[nn.Module, None, Watch]:
        tried.append(args.arch)
        depth = int(args.arch.removeprefix('resnet'))
        model = nn.Sequential(nn.Flatten(), *[nn.Linear(784, 784) for _ in range(depth // 10)])
        return model, torch.optim.SGD(model.parameters(), 0.1), Watch(model, devices_of(args))

    report = tmp_path / 'report.json'
    limits.find(parse(None, arguments=['--find_depth', '--batchsize', '4', '--memory_limit', '60MB', '--report', str(report)]),
                build, train)
    depth = json.loads(report.read_text())['find_depth']
    assert f'resnet{depth}' in tried and depth in models.depths(depth)
    assert all(int(arch.removeprefix('resnet')) in models.depths(3000) for arch in tried)


@pytest.mark.slow
@pytest.mark.parametrize(('path', 'flags', 'margin'), [
    ('exercises/mnist_pytorch.py', ['--memory_limit', '200MB'], 0.0),
    ('solutions/09_mnist_gpipe.py', ['--memory_limit', '140MB', '--devices', '2', '--num_microbatches', '4'], 0.1),
])
def test_what_the_script_finds_it_can_train_and_no_more(path: str, flags: list[str], margin: float) -> None:
    def run(*more: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, 'PYTHONPATH': str(ROOT / 'lib'), 'CUDA_VISIBLE_DEVICES': ''}
        return subprocess.run([sys.executable, path, '--arch', 'resnet18', '--test_samples', '4', *flags, *more], cwd=ROOT,
                              env=environment, text=True, capture_output=True, timeout=900)

    search = run('--find_batchsize')
    assert search.returncode == 0, search.stderr
    command = re.search(r'^Train it with: (.*)$', search.stdout, re.MULTILINE)[1].split()
    batch = int(command[command.index('--batchsize') + 1])

    def train(size: int) -> subprocess.CompletedProcess:
        return run(*command, '--batchsize', str(size), '--samples', str(2 * size))

    assert train(int(batch * (1 - margin))).returncode == 0
    more = train(int(batch * (1 + margin)) + 1)
    assert more.returncode == 1 and 'out of memory' in more.stderr
