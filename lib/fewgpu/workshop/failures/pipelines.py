"""What the faults of pipelines share: a small pipeline on virtual devices, and some steps of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fewgpu.device import Device
from fewgpu.pipeline import Pipeline
from fewgpu.simulate import Costs
from fewgpu.trace import Timeline

DEVICES, CHUNKS, LAYERS = 3, 4, 4   # of the pipeline; micro-batches; linear layers of a stage
WIDTH, ROWS = 256, 16               # of a layer; of a micro-batch
PACE = 0.1                          # of a core for each device: what else runs here then hardly shows in their times
STEPS = 10
MESSAGE = ROWS * WIDTH * 4          # bytes between two stages
BACKWARDS = [2 - 1 / LAYERS, 2.0, 2.0]   # of the stages, over a forward: the first one's input needs no gradient


def stages(count: int) -> nn.Sequential:
    """So many stages of equal layers: the same model in every process."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(count * LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def mini_batch(chunks: int = CHUNKS) -> torch.Tensor:
    return torch.randn(chunks * ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def pipeline(devices: Sequence[Device], **arguments: Any) -> Pipeline:
    """Of equal stages, one a device. (Without an optimizer: it would take seconds to import torch's.)"""
    model = stages(len(devices))
    return Pipeline(model, [2 * LAYERS] * len(devices), **{
        'chunks': CHUNKS, 'devices': devices, 'loss_fn': nn.functional.mse_loss, **arguments})


def some_steps(devices: Sequence[Device]) -> list[Timeline]:
    """Timelines of a few steps, when all is warm."""
    pipe, x, steps = pipeline(devices), mini_batch(), []
    warm_up(pipe, x)
    for _ in range(STEPS):
        pipe.step(x, x)
        steps.append(pipe.trace)
    return steps


def warm_up(pipe: Pipeline, x: torch.Tensor) -> None:
    """One step at full speed: torch's first use of anything takes long, and a pace would make it 1 / pace as long."""
    paces = [device.pace for device in pipe.devices]
    for device in pipe.devices:
        device.pace = None
    pipe.step(x, x)
    for device, pace in zip(pipe.devices, paces):
        device.pace = pace


def shortest(steps: Sequence[Timeline]) -> Timeline:
    """The step that other programs disturbed least."""
    return min(steps, key=lambda step: step.makespan)


def costs(**link: float) -> Costs:
    """What equal stages should cost, in forwards; and links as in `Costs`."""
    return Costs(F=1.0, B=BACKWARDS, message=MESSAGE, **link)
