"""What changes with one size, all else alike: micro-batches, batch, depth. Each returns lists, ready for JSON."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fewgpu.balance import cut, profile
from fewgpu.microbatch import scatter
from fewgpu.schedule import SCHEDULES
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.systems.trainers import pipeline, plain
from fewgpu.workshop.systems.work import WARM_UP, Work

MINI_BATCHES = 3   # measured, after those that warm up
DEPTHS = (1, 2, 4, 8)
MOST = 60_000 // (WARM_UP + MINI_BATCHES)   # rows of a mini-batch, of which MNIST has enough


def chunk_counts(batch: int) -> list[int]:
    """Powers of two, at most 64 and a row each."""
    return [chunks for chunks in (1, 2, 4, 8, 16, 32, 64) if chunks <= batch]


def batch_sizes(work: Work) -> list[int]:
    """About a quarter, half, once and twice the batch; a row a device at least, and as MNIST has."""
    wanted = (work.batch // 4, work.batch // 2, work.batch, 2 * work.batch)
    return sorted({min(max(work.devices, size), MOST) for size in wanted})


def micro_batches(work: Work) -> dict[str, Any]:
    """C15: GPipe's speed by the number of micro-batches, measured."""
    batch = min(work.batch, MOST)
    counts = chunk_counts(batch)
    short = replace(work, batch=batch, samples=batch * (WARM_UP + MINI_BATCHES), test_samples=1)
    speeds = [pipeline(short, 'gpipe', chunks=chunks).samples_per_second for chunks in counts]
    return {'counts': counts, 'speeds': speeds}


def batches(work: Work) -> dict[str, Any]:
    """C22, C32: speed and the fullest device's peak bytes by the batch, plain and as a pipeline, measured."""
    sizes = batch_sizes(work)
    found: dict[str, Any] = {'sizes': sizes, 'plain': [], 'pipeline': [], 'plain_bytes': [], 'pipeline_bytes': []}
    for size in sizes:
        short = replace(work, batch=size, samples=size * (WARM_UP + MINI_BATCHES), test_samples=1)
        for name, outcome in (('plain', plain(short)), ('pipeline', pipeline(short, '1f1b'))):
            found[name].append(outcome.samples_per_second)
            found[f'{name}_bytes'].append(max(outcome.peak))
    return found


def depths(work: Work) -> dict[str, Any]:
    """C32: by the number of stages, in virtual time from layers measured here: samples/sec of one micro-batch size,
    for each device, and the fullest device's bytes."""
    model, sample = work.model(), scatter(work.batches[0][0], work.chunks)[0]
    layers = profile(model, sample, timeout=2.0)
    tried = [depth for depth in DEPTHS if depth <= len(layers)]
    found: dict[str, Any] = {'depths': tried, 'per_device': [], 'bytes': []}
    for depth in tried:
        balance = cut([layer.forward + layer.backward for layer in layers], depth)
        ends = [sum(balance[:stage + 1]) for stage in range(depth)]
        parts = [layers[end - count:end] for end, count in zip(ends, balance)]
        costs = Costs(F=[sum(layer.forward for layer in part) for part in parts],
                      B=[sum(layer.backward for layer in part) for part in parts],
                      stash=[sum(layer.saved_bytes for layer in part) for part in parts],
                      weights=[sum(layer.parameter_bytes for layer in part) for part in parts])
        timeline = simulate(SCHEDULES['1f1b'](depth, work.chunks), costs)
        found['per_device'].append(work.batch / timeline.makespan / depth)
        found['bytes'].append(max(timeline.peak(device) for device in range(depth)))
    return found


#: {key: (what it is called, what runs it)}.
SWEEPS: dict[str, tuple[str, Callable[[Work], dict[str, Any]]]] = {
    'sweep-chunks': ('more micro-batches', micro_batches), 'sweep-batch': ('larger batches', batches),
    'sweep-depth': ('deeper pipelines', depths)}
