"""Runs of every engine, alike: made from a module and what makes an optimizer, trained, saved and resumed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fewgpu import GPipe, ModelParallel, Pipeline
from fewgpu.checkpoint import Checkpoints, load_training_state, training_state
from fewgpu.data_parallel import DataParallel
from fewgpu.device import Device
from fewgpu.hybrid import hybrid
from fewgpu.offload import Offloaded
from fewgpu.pipemare import PipeMare
from fewgpu.schedule import pipedream
from fewgpu.spill import Spilled
from fewgpu.zero import ZeRO

STEPS, ROWS = 6, 8
LAYERS = [2, 3]   # of two stages
loss_fn = nn.functional.mse_loss
Make = Callable[[Any], torch.optim.Optimizer]
Batch = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 2)).double()


def smooth() -> nn.Sequential:
    """A network in which the rows do not depend on each other, nor on chance."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(ROWS, 4, dtype=torch.float64, generator=generator),
             torch.randn(ROWS, 2, dtype=torch.float64, generator=generator)) for _ in range(STEPS)]


def adam(parameters: Any) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.05)


def momentum(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def mare(parameters: Any) -> PipeMare:
    return PipeMare(adam(parameters), annealing=9)


class Module:
    """A run of a module with an optimizer, and a schedule of its learning rate, outside of it."""

    def __init__(self, model: nn.Module, make: Make) -> None:
        self.model, self.optimizer = model, make(model.parameters())
        self.more = {'scheduler': torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)}

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.more['scheduler'].step()
        return loss.item()


class Engine:
    """A run of an engine that has its optimizers itself."""

    optimizer, more = None, {}

    def __init__(self, model: Any, step: Callable[..., torch.Tensor] | None = None) -> None:
        self.model, self._step = model, step or model.step

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return self._step(x, y).item()


class Shared(Engine):
    """A run of ZeRO."""

    def __init__(self, model: ZeRO) -> None:
        self.model = model

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        loss = loss_fn(self.model(x), y)
        loss.backward()
        self.model.step()
        return loss.item()


def pipeline(schedule: Any, balance: list[int], rows: int, module: nn.Sequential, make: Make, chunks: int) -> Engine:
    return Engine(Pipeline(module, balance, schedule=schedule, chunks=chunks, loss_fn=loss_fn, optimizer=make,
                           devices=None if dist.is_initialized() else ['cpu'] * rows))


def long_run(schedule: str, module: nn.Sequential, make: Make, chunks: int) -> Engine:
    """Its step is three mini-batches that follow each other without a drain in between."""
    model = pipeline(schedule, [1, 1, 3], 3, module, make, chunks + 1).model
    return Engine(model, lambda x, y: model.train([(x, y), (-x, y), (x, -y)])[-1])


def offloaded(module: nn.Sequential, make: Make, chunks: int) -> Engine:
    model = Offloaded(module, optimizer=make, loss_fn=loss_fn, device=Device())
    return Engine(model, partial(model.step, chunks=chunks))


ENGINES: dict[str, Callable[[nn.Sequential, Make, int], Any]] = {
    'plain': lambda module, make, chunks: Module(module, make),
    'GPipe': lambda module, make, chunks: Module(GPipe(module, LAYERS, chunks=chunks, devices=['cpu'] * 2), make),
    'ModelParallel': lambda module, make, chunks: Module(ModelParallel(module, LAYERS, devices=['cpu'] * 2), make),
    **{name: partial(pipeline, name, LAYERS, 2)
       for name in ('gpipe', '1f1b', 'zb-h1', 'zb-h2', 'gems', 'pipedream', '2bw')},
    **{name: partial(pipeline, name, [1, 1, 2, 1], 2) for name in ('interleaved', 'v-shape')},
    'pipedream 2-1': partial(pipeline, partial(pipedream, replicas=(2, 1)), LAYERS, 3),   # the last: twice a step
    'pipedream 2-2': partial(pipeline, partial(pipedream, replicas=(2, 2)), LAYERS, 4),
    'Spilled': lambda module, make, chunks: Engine(Spilled(module, LAYERS, device=Device(), loss_fn=loss_fn,
                                                           optimizer=make)),
    'Offloaded': offloaded,
}
LONG = {f'{name}, long runs': partial(long_run, name) for name in ('pipedream', '2bw', 'pipemare', '1f1b')}
ON_RANKS = {   # two of them
    'DataParallel': lambda module, make, chunks: Module(DataParallel(module), make),
    **{name: ENGINES[name] for name in ('gpipe', '1f1b', 'gems', 'pipedream', 'v-shape')},
    **{f'ZeRO {stage}': lambda module, make, chunks, stage=stage: Shared(ZeRO(module, stage=stage, optimizer=make))
       for stage in (1, 2, 3)},
    'hybrid 2x1': lambda module, make, chunks: Engine(hybrid(module, [5], replicas=2, chunks=chunks, loss_fn=loss_fn,
                                                             optimizer=make)),
    'Offloaded': offloaded,
}


def own_rows(name: str, batch: Batch) -> Batch:
    """Of this rank, where each has its own; all otherwise."""
    apart = name == 'DataParallel' or name.startswith(('ZeRO', 'hybrid')) or (name == 'Offloaded')
    if not (apart and dist.is_initialized()):
        return batch
    return tuple(tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in batch)


def weights(run: Any) -> dict[str, list]:
    return {name: value.tolist() for name, value in run.model.state_dict().items()}


def whole_run(make: Callable[[], Any], data: list[Batch]) -> list:
    """Losses, and the weights at the end, as plain numbers."""
    torch.manual_seed(3)
    run = make()
    losses = [run.step(*batch) for batch in data]
    return [losses, weights(run)]


def interrupted_run(make: Callable[[], Any], data: list[Batch], folder: str | Path, at: int) -> list:
    """The same of a run that was saved after `at` steps, and resumed by what has been made anew."""
    torch.manual_seed(3)
    run = make()
    losses = [run.step(*batch) for batch in data[:at]]
    Checkpoints(folder).save(at, training_state(run.model, run.optimizer, epoch=7, **run.more))

    torch.manual_seed(999)   # another process would be anywhere
    run = make()
    saved = Checkpoints(folder).latest()
    more = load_training_state(saved, run.model, run.optimizer, **run.more)
    assert (saved.step, more) == (at, {'epoch': 7})
    return [losses + [run.step(*batch) for batch in data[at:]], weights(run)]
