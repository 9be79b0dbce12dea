"""Seven ways to train a chain of linear layers, predicted by the planner and measured.

The planner knows what each layer takes alone, and nothing else.
"""

import time
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from fewgpu import DataParallel, Device, Pipeline, launch
from fewgpu.collectives import Group, all_reduce
from fewgpu.link import Link
from fewgpu.planner import way_pipeline
from fewgpu.planner.cluster import Cluster
from fewgpu.planner.model import Model
from fewgpu.planner.own import own
from fewgpu.planner.way_memory import Precision
from fewgpu.planner.ways import Knobs, Prediction, Task
from fewgpu.workshop.noise import Quiet

WIDTH, LAYERS, ROWS, CHUNKS = 512, 8, 256, 8   # of a linear layer; of the model; of a micro-batch; a mini-batch
PACE = 0.3           # of a core: four such devices need little more than one
WARM_UP, ROUNDS = 3, 3
SGD = Precision('float32, SGD', weight=4, gradient=4, optimizer=0, number=4)


class Way(NamedTuple):
    """One configuration."""

    name: str
    devices: int
    knobs: Knobs
    link: float = 0.0   #: what a message takes, as a share of what a stage computes for a micro-batch

    @property
    def chunks(self) -> int:
        return self.knobs.chunks(ROWS * CHUNKS)


WAYS = (
    Way('plain', 1, Knobs(rows=ROWS)),
    Way('model parallel, 2', 2, Knobs(stages=2, rows=ROWS * CHUNKS, schedule='one at a time')),
    Way('GPipe, 2', 2, Knobs(stages=2, rows=ROWS, schedule='gpipe')),
    Way('GPipe, 4, recompute', 4, Knobs(stages=4, rows=ROWS, schedule='gpipe', recompute='stages')),
    Way('1F1B, 4', 4, Knobs(stages=4, rows=ROWS)),
    Way('1F1B, 4, slow link', 4, Knobs(stages=4, rows=ROWS), link=0.3))
DATA = Way('data parallel, 2', 2, Knobs(replicas=2, rows=ROWS * CHUNKS // 2))


class Result(NamedTuple):
    """Samples a second, and bytes on the fullest device (0 where they were not counted)."""

    predicted: Prediction
    speed: float
    memory: int

    @property
    def error(self) -> float:
        return self.predicted.samples_per_second / self.speed - 1.0


def predict(way: Way, profile: Model, bandwidth: float) -> Prediction:
    """From a model that has seconds in place of FLOPs."""
    cluster = Cluster(devices=way.devices, per_server=1, memory=1e12, flops32=1.0, efficiency=1.0, overhead=0.0,
                      latency=0.0, between=bandwidth)
    return way_pipeline.predict(way.name, Task(profile, cluster, ROWS * CHUNKS, SGD), way.knobs)


def bandwidth_of(way: Way, profile: Model) -> float:
    """Bytes a second, such that a message takes the way's share of a stage's time."""
    if not way.link:
        return 1e15
    seconds = ROWS * (profile.flops + sum(layer.gradient_flops for layer in profile.layers)) / way.devices
    return ROWS * WIDTH * 4 / (way.link * seconds)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))


def _pipeline(way: Way, profile: Model) -> Pipeline:
    knobs, bandwidth = way.knobs, bandwidth_of(way, profile)
    devices = [Device('cpu', index=index, pace=PACE, link=Link(0.0, bandwidth)) for index in range(way.devices)]
    balance = [stage.layers for stage in profile.stages(knobs.stages)]
    return Pipeline(_model(), balance, devices=devices, chunks=way.chunks, loss_fn=nn.functional.mse_loss,
                    schedule='1f1b' if knobs.schedule == '1f1b' else 'gpipe',
                    optimizer=partial(torch.optim.SGD, lr=0.01),
                    checkpoint='never' if knobs.recompute == 'never' else 'always')


def on_paced_devices() -> tuple[Model, dict[Way, tuple[float, int]], Quiet]:
    """What layers cost; samples a second and bytes of every way; whether the machine was quiet meanwhile.

    Ways and layers take turns, and medians count. Links are as slow as the first measurement of layers says.
    """
    x = torch.randn(ROWS * CHUNKS, WIDTH)
    alone = Pipeline(_model(), [1] * LAYERS, schedule='gpipe', chunks=1, loss_fn=nn.functional.mse_loss,
                     devices=[Device('cpu', index=index, pace=PACE) for index in range(LAYERS)])
    layers = [_layers(alone, x[:ROWS]) for _ in range(WARM_UP)][-1:]
    quiet = Quiet(threads=2)   # all devices at once need 1.2 cores
    pipelines = {way: _pipeline(way, profile_of(layers)) for way in WAYS}
    peaks = {way: _peak(pipe, x) for way, pipe in pipelines.items()}
    seconds: dict[Way, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        quiet.look()
        for way, pipe in pipelines.items():
            layers.append(_layers(alone, x[:ROWS]))
            begun = time.perf_counter()
            pipe.step(x, x)
            seconds[way].append(time.perf_counter() - begun)
    return (profile_of(layers), {way: (len(x) / median(seconds[way]), peaks[way]) for way in WAYS}, quiet)


def _layers(alone: Pipeline, x: torch.Tensor) -> list[tuple[float, float]]:
    """Seconds of every layer's forward and backward, of one micro-batch on which one layer works at a time."""
    alone.step(x, x)
    return [tuple(next(span.seconds for span in row if span.op.kind == kind) for kind in 'FB')
            for row in alone.trace.rows]


def profile_of(rounds: list[list[tuple[float, float]]]) -> Model:
    """The layers, with seconds in place of FLOPs: the median of all, for they are alike."""
    forward, backward = (median(one[kind] for layers in rounds for one in layers) / ROWS for kind in (0, 1))
    counted = own(_model(), torch.randn(ROWS, WIDTH))
    return replace(counted, layers=tuple(replace(layer, flops=forward, backward=backward)
                                         for layer in counted.layers))


def _peak(pipe: Pipeline, x: torch.Tensor) -> int:
    """Bytes on the fullest device in a step, counted (in the first step, which warms up)."""
    for device in pipe.devices:
        device.meter()
    pipe.step(x, x)
    peaks = [pipe.trace.peak(row) or 0 for row in range(len(pipe.devices))]
    for device in pipe.devices:
        device.unmeter()
    return max(peaks)


def on_ranks(profile: Model) -> Result:
    """Data parallelism on two processes; the slower rank, and its all-reduce, count."""
    found = launch(_rank, 2)
    bandwidth = 4 * profile.parameters / max(alone for alone, _ in found)   # two ranks send all bytes once
    return Result(predict(DATA, profile, bandwidth), ROWS * CHUNKS / max(step for _, step in found), 0)


def _rank() -> tuple[float, float]:
    """Median seconds of an all-reduce of all gradients, alone, and of a step."""
    model, group, device = DataParallel(_model()), Group(None), Device('cpu', pace=PACE)
    x, gradients = torch.randn(DATA.knobs.rows, WIDTH), torch.zeros(LAYERS * WIDTH * (WIDTH + 1))
    optimizer, alone, steps = torch.optim.SGD(model.parameters(), lr=0.01), [], []
    for _ in range(1 + ROUNDS):
        begun = time.perf_counter()
        all_reduce(gradients, group)
        reduced = time.perf_counter()
        optimizer.zero_grad()
        with device.paced():
            nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        alone.append(reduced - begun)
        steps.append(time.perf_counter() - reduced)
    return median(alone[1:]), median(steps[1:])
