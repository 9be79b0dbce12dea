"""Gradients that gather over several calls: as one mini-batch of all their rows, on every engine."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu import GPipe, ModelParallel, Pipeline, launch
from fewgpu.data_parallel import DataParallel
from fewgpu.device import Device
from fewgpu.hybrid import hybrid
from fewgpu.offload import Offloaded
from fewgpu.spill import Spilled
from fewgpu.zero import ZeRO
from tests.runs import adam, loss_fn, smooth

Batch = tuple[torch.Tensor, torch.Tensor]
FLUSHING = {**dict.fromkeys(('gpipe', '1f1b', 'zb-h1', 'zb-h2', 'gems'), [2, 3]),
            **dict.fromkeys(('interleaved', 'v-shape'), [1, 1, 2, 1])}


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return smooth()


def data(seed: int, k: int, rows: int) -> list[list[Batch]]:
    """Of two updates: k mini-batches each."""
    generator = torch.Generator().manual_seed(seed)
    return [[(torch.randn(rows, 4, dtype=torch.float64, generator=generator),
              torch.randn(rows, 2, dtype=torch.float64, generator=generator)) for _ in range(k)] for _ in range(2)]


def together(calls: list[Batch]) -> Batch:
    return tuple(map(torch.cat, zip(*calls)))


def at_once(seed: int, k: int, rows: int) -> dict[str, torch.Tensor]:
    """The weights of the plain model after one step with each large mini-batch."""
    model = network(seed)
    optimizer = adam(model.parameters())
    for calls in data(seed, k, rows):
        x, y = together(calls)
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


def part_of(k: int) -> Callable:
    return lambda output, y: loss_fn(output, y) / k


def outside(wrap: Callable, seed: int, k: int, rows: int) -> Any:
    """The caller has the optimizer and calls backward."""
    model = wrap(network(seed))
    optimizer = adam(model.parameters())
    for calls in data(seed, k, rows):
        optimizer.zero_grad()
        for x, y in calls:
            (loss_fn(model(x), y) / k).backward()
        optimizer.step()
    return model


def gathered(schedule: str, seed: int, k: int, rows: int) -> Any:
    """A Pipeline without an optimizer: its caller has one."""
    model = Pipeline(network(seed), FLUSHING[schedule], schedule=schedule, chunks=2, loss_fn=part_of(k),
                     devices=['cpu'] * 2)
    optimizer = adam(model.parameters())
    for calls in data(seed, k, rows):
        for batch in calls:
            model.step(*batch)
        optimizer.step()
        optimizer.zero_grad()
    return model


def waiting(engine: Any, seed: int, k: int, rows: int, own: Callable[[Batch], Batch] = lambda batch: batch) -> Any:
    """The engine's own optimizers wait for the last call."""
    for calls in data(seed, k, rows):
        for number, batch in enumerate(calls, 1):
            engine.step(*own(batch), update=number == k)
    assert all(parameter.grad is None for parameter in engine.parameters())
    return engine


def pipeline(schedule: str, seed: int, k: int) -> Pipeline:
    return Pipeline(network(seed), FLUSHING[schedule], schedule=schedule, chunks=2, loss_fn=part_of(k), optimizer=adam,
                    devices=None if dist.is_initialized() else ['cpu'] * 2)


def spilled(seed: int, k: int, rows: int) -> Spilled:
    return waiting(Spilled(network(seed), [2, 3], device=Device(), loss_fn=part_of(k), optimizer=adam), seed, k, rows)


def offloaded(seed: int, k: int, rows: int) -> Offloaded:
    """It updates layer by layer on the way back: its calls are micro-batches of one step."""
    model = Offloaded(network(seed), optimizer=adam, loss_fn=loss_fn, device=Device())
    for calls in data(seed, k, rows):
        model.step(*together(calls), chunks=k)
    return model


ENGINES: dict[str, Callable[[int, int, int], Any]] = {
    'GPipe': partial(outside, lambda module: GPipe(module, [2, 3], chunks=2, devices=['cpu'] * 2)),
    'ModelParallel': partial(outside, lambda module: ModelParallel(module, [2, 3], devices=['cpu'] * 2)),
    **{f'{name}, optimizer outside': partial(gathered, name) for name in FLUSHING},
    **{name: lambda seed, k, rows, name=name: waiting(pipeline(name, seed, k), seed, k, rows) for name in FLUSHING},
    'Spilled': spilled, 'Offloaded': offloaded,
}


@pytest.mark.parametrize('name', ENGINES)
@settings(max_examples=8)
@given(st.integers(0, 999), st.integers(1, 4), st.integers(2, 6))
def test_several_calls_and_one_update_are_one_large_mini_batch(name: str, seed: int, k: int, rows: int) -> None:
    torch.testing.assert_close(dict(ENGINES[name](seed, k, rows).state_dict()), dict(at_once(seed, k, rows)))


def shared_out(wrap: Callable, seed: int, k: int, rows: int) -> dict[str, torch.Tensor]:
    """Every rank has its rows of each call; all but the last call of an update send nothing."""
    model = wrap(network(seed))
    optimizer = adam(model.parameters()) if isinstance(model, DataParallel) else model
    for calls in data(seed, k, rows):
        model.zero_grad()
        for number, (x, y) in enumerate(map(own_half, calls), 1):
            if number < k:
                with model.no_sync():
                    (loss_fn(model(x), y) / k).backward()
            else:
                (loss_fn(model(x), y) / k).backward()
        optimizer.step()
    return model.state_dict()


def own_half(batch: Batch) -> Batch:
    return tuple(tensor.chunk(2)[dist.get_rank()] for tensor in batch)


def on_ranks(cases: list[tuple[int, int, int]]) -> list[dict[str, dict]]:
    found = []
    for case in cases:
        seed, k, _ = case
        engines = {f'ZeRO {stage}': shared_out(partial(ZeRO, stage=stage, optimizer=adam), *case)
                   for stage in (1, 2, 3)}
        engines['DataParallel'] = shared_out(DataParallel, *case)
        for name in ('1f1b', 'gems', 'v-shape'):
            engines[name] = waiting(pipeline(name, seed, k), *case).state_dict()
        model = hybrid(network(seed), [5], replicas=2, chunks=2, loss_fn=part_of(k), optimizer=adam)
        engines['hybrid 2x1'] = waiting(model, *case, own=own_half).state_dict()
        found.append(engines)
    return found


@pytest.mark.slow
def test_on_ranks_too() -> None:
    cases = [(1, 1, 4), (2, 3, 4), (3, 2, 6)]
    for of_rank in launch(on_ranks, 2, args=(cases,)):
        for case, engines in zip(cases, of_rank):
            expected = at_once(*case)
            for name, state in engines.items():
                for key, value in state.items():
                    torch.testing.assert_close(value, expected[key], msg=lambda m: f'{name}, {case}, {key}: {m}')


@pytest.mark.parametrize('schedule', ('pipedream', '2bw', 'pipemare'))
def test_a_schedule_that_updates_within_a_step_cannot_wait(schedule: str) -> None:
    model = Pipeline(network(0), [2, 3], schedule=schedule, chunks=2, loss_fn=loss_fn, optimizer=adam,
                     devices=['cpu'] * 2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match='cannot wait for more mini-batches: choose more chunks'):
        model.step(*data(0, 1, 4)[0][0], update=False)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_call_that_fails_leaves_nothing_of_those_before() -> None:
    model = pipeline('1f1b', 0, 1)
    x, y = data(0, 1, 4)[0][0]
    model.step(x, y, update=False)
    with pytest.raises(RuntimeError):
        model.step(x[:, :3], y, update=False)
    assert all(parameter.grad is None for parameter in model.parameters())
