"""How each system trains: one function a system, from the work to what came of it."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fewgpu.balance import balance_by_size
from fewgpu.data_parallel import DataParallel
from fewgpu.device import Device
from fewgpu.held import device_of_rank
from fewgpu.launch import launch
from fewgpu.pipeline import Pipeline
from fewgpu.schedule import SCHEDULES, staleness
from fewgpu.spill import Spilled
from fewgpu.workshop.systems.work import WARM_UP, Batch, Outcome, Work, loss_fn, peaks, reset_peaks, sgd
from fewgpu.zero import ZeRO

Train = Callable[[Sequence[Batch]], float]   # on mini-batches; the last loss


def plain(work: Work) -> Outcome:
    """The plain model on one device."""
    device, = work.places(1)
    with device.active():
        model = work.model().to(device.torch)
        optimizer = sgd(model.parameters())

    def train(batches: Sequence[Batch]) -> float:
        for x, y in batches:
            with device.active(), device.paced():
                optimizer.zero_grad()
                loss = loss_fn(model(x.to(device.torch)), y.to(device.torch))
                loss.backward()
                optimizer.step()
        return loss.item()

    return _measured(work, train, [device], model.state_dict)


def pipeline(work: Work, schedule: str, *, chunks: int | None = None) -> Outcome:
    """A pipeline of any schedule; mini-batches follow each other as its schedule lets them."""
    devices = work.places()
    trainer = Pipeline(work.model(), work.balance, schedule=schedule, chunks=chunks or work.chunks, devices=devices,
                       loss_fn=loss_fn, optimizer=sgd)
    stages = len(work.balance)
    late = max(staleness(SCHEDULES[schedule](stages, 4 * stages)).values())

    def train(batches: Sequence[Batch]) -> float:
        return trainer.train(batches)[-1].item()

    outcome = _measured(work, train, trainer.devices, trainer.state_dict, late=late)
    if not outcome.busy:   # GPUs: their spans are measured among their kernels
        outcome.busy = trainer.trace.busy_share
    return outcome


def spilled(work: Work) -> Outcome:
    """One device that holds a shard of the model at a time."""
    device, = work.places(1)
    model = work.model()
    balance = balance_by_size(min(2 * work.devices, len(model)), model, work.batches[0][0], param_scale=3.0)
    trainer = Spilled(model, balance, device=device, loss_fn=loss_fn, optimizer=sgd)

    def train(batches: Sequence[Batch]) -> float:
        return [trainer.step(x, y).item() for x, y in batches][-1]

    return _measured(work, train, [device], trainer.state_dict)


def on_ranks(work: Work, zero: int = 0) -> Outcome:
    """Data parallelism, a rank a device; with `zero` its model states are sharded (stage 1, 2 or 3)."""
    outcomes = launch(partial(_rank, work, zero), work.devices)
    first, rows = outcomes[0], [len(part) for part in torch.arange(work.batch).tensor_split(work.devices)]
    loss = sum(one.loss * count for one, count in zip(outcomes, rows)) / work.batch   # each has that of its own rows
    return Outcome(min(one.samples_per_second for one in outcomes), [share for one in outcomes for share in one.busy],
                   [one.peak[0] for one in outcomes], 0, loss, first.accuracy, first.state)


def _rank(work: Work, zero: int) -> Outcome:
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = work.places(1, first=rank)[0] if not torch.cuda.is_available() else device_of_rank(rank)
    with device.active():
        model = work.model().to(device.torch)
        if zero:
            model = ZeRO(model, stage=zero, optimizer=sgd)
            update: Any = model
        else:
            model = DataParallel(model)
            update = sgd(model.parameters())

    def train(batches: Sequence[Batch]) -> float:
        for x, y in batches:
            x, y = (part.tensor_split(size)[rank].to(device.torch) for part in (x, y))
            with device.active(), device.paced():
                model.zero_grad()
                loss = loss_fn(model(x), y)
                loss.backward()
                update.step()
        return loss.item()

    return _measured(work, train, [device], model.state_dict)


def _measured(work: Work, train: Train, devices: Sequence[Device], state: Callable[[], dict[str, Any]], *,
              late: int = 0) -> Outcome:
    """Count memory in the first mini-batches, measure the speed of all others."""
    reset_peaks(devices)   # what was needed to set it up is over
    train(work.batches[:WARM_UP])
    most = peaks(devices)
    for device in devices:
        device.unmeter()
    begun, before = time.perf_counter(), [device.computed for device in devices]
    loss = train(work.batches[WARM_UP:])
    seconds = time.perf_counter() - begun
    samples = sum(len(x) for x, _ in work.batches[WARM_UP:])
    shares = [(device.computed - since) / seconds for device, since in zip(devices, before) if device.is_virtual]
    values = {name: tensor.cpu() for name, tensor in state().items()}
    return Outcome(samples / seconds, shares, most, late, loss, work.accuracy(values), values)


#: {key: (what it is called, how it trains)}, in the order of the table.
SYSTEMS: dict[str, tuple[str, Callable[[Work], Outcome]]] = {
    'plain': ('plain, one device', plain),
    'data-parallel': ('data parallel', on_ranks),
    'model-parallel': ('model parallel', partial(pipeline, schedule='gpipe', chunks=1)),
    'gpipe': ('GPipe', partial(pipeline, schedule='gpipe')),
    '1f1b': ('1F1B', partial(pipeline, schedule='1f1b')),
    'pipedream': ('PipeDream', partial(pipeline, schedule='pipedream', chunks=1)),
    '2bw': ('PipeDream-2BW', partial(pipeline, schedule='2bw')),
    'zero': ('ZeRO-3', partial(on_ranks, zero=3)),
    'spilled': ('spilled (Hydra)', spilled),
}
