"""Half precision: every engine computes under autocast as the plain model does, and obeys torch.amp.GradScaler."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu import GPipe, ModelParallel, launch
from fewgpu.data_parallel import DataParallel
from fewgpu.zero import ZeRO
from tests.runs import ENGINES, ON_RANKS, Module, Shared, loss_fn, own_rows, smooth
from tests.test_loss_scale import CASES, ROWS
from tests.test_loss_scale import adam as small_adam
from tests.test_loss_scale import batches as marked_batches
from tests.test_loss_scale import constants, plans
from tests.test_loss_scale import loss_fn as marked_loss
from tests.test_loss_scale import network as marked_network
from tests.test_loss_scale import plain as plain_with_scaler

WHOLE = ('plain', 'ModelParallel', 'Spilled', 'pipedream')   # of which a mini-batch is one micro-batch


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.5)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return smooth().float()


def data(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(2)]


def plain(seed: int, micro_batches: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the plain model under autocast, micro-batch by micro-batch."""
    model = network(seed)
    optimizer, losses = sgd(model.parameters()), []
    for x, y in data(seed):
        optimizer.zero_grad()
        parts = []
        for own_x, own_y in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
            with torch.autocast('cpu', torch.bfloat16):
                output = model(own_x)
                assert output.dtype == torch.bfloat16
                parts.append(loss_fn(output, own_y) / micro_batches)
            parts[-1].backward()
        optimizer.step()
        losses.append(sum(parts).item())
    return losses, model.state_dict()


def under_autocast(run: Any, seed: int, name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    losses = []
    for x, y in (own_rows(name, batch) for batch in data(seed)):
        if isinstance(run, (Module, Shared)):   # who calls backward does so outside
            with torch.autocast('cpu', torch.bfloat16):
                loss = loss_fn(run.model(x), y)
            loss.backward()
            updates = run.model if isinstance(run, Shared) else run.optimizer
            updates.step()
            updates.zero_grad()
            losses.append(loss.item())
        else:
            with torch.autocast('cpu', torch.bfloat16):
                losses.append(run.step(x, y))
    return losses, run.model.state_dict()


def assert_as_plain(found: tuple[list[float], dict], seed: int, name: str) -> None:
    """A sum of two micro-batches is the same in any order: all bits are."""
    losses, weights = plain(seed, 1 if name in WHOLE else 2)
    if not (name in ('DataParallel', 'hybrid 2x1') or name.startswith('ZeRO')):   # where it is that of the own rows
        torch.testing.assert_close(found[0], losses, rtol=1e-6, atol=0.0)
    for key, value in found[1].items():
        assert torch.equal(value, weights[key]), f'{name}, seed {seed}, {key}'


@pytest.mark.parametrize('name', [name for name in ENGINES if name != 'pipedream 2-1'])
@settings(max_examples=10)
@given(st.integers(0, 999))
def test_under_autocast_every_engine_is_the_plain_model_bit_for_bit(name: str, seed: int) -> None:
    run = ENGINES[name](network(seed), sgd, 1 if name in WHOLE else 2)
    assert_as_plain(under_autocast(run, seed, name), seed, name)


def autocast_on_ranks(seeds: list[int]) -> list[dict[str, tuple]]:
    chunks = {name: 1 if name in WHOLE or own_rows(name, data(0)[0])[0].shape[0] < 8 else 2 for name in ON_RANKS}
    return [{name: under_autocast(make(network(seed), sgd, chunks[name]), seed, name)
             for name, make in ON_RANKS.items()} for seed in seeds]


@pytest.mark.slow
def test_under_autocast_ranks_are_the_plain_model_bit_for_bit() -> None:
    seeds = [1, 2, 3]
    for of_rank in launch(autocast_on_ranks, 2, args=(seeds,)):
        for seed, engines in zip(seeds, of_rank):
            for name, found in engines.items():
                assert_as_plain(found, seed, name)


# torch.amp.GradScaler, where the optimizer is outside

def with_scaler(model: nn.Module, planted: list, constants: tuple, own: Callable = lambda batch: batch
                ) -> tuple[list[float], dict]:
    initial, growth, backoff, interval = constants
    scaler, scales = torch.amp.GradScaler('cpu', initial, growth, backoff, interval), []
    optimizer = None if isinstance(model, ZeRO) else small_adam(model.parameters())
    for x, y in map(own, marked_batches(planted)):
        (optimizer or model).zero_grad()
        scaler.scale(marked_loss(model(x), y)).backward()
        if isinstance(model, ZeRO):
            model.step(scaler)
        else:
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, model.state_dict()


@pytest.mark.parametrize('wrap', (lambda module: GPipe(module, [2, 2], chunks=2, devices=['cpu'] * 2),
                                  lambda module: ModelParallel(module, [1, 3], devices=['cpu'] * 2)))
@settings(max_examples=10)
@given(planted=plans, constants=constants)
def test_a_scaler_outside_skips_grows_and_shrinks_as_for_the_plain_model(wrap: Callable, planted: list, constants: tuple
                                                                        ) -> None:
    model = wrap(marked_network())
    scales, weights = with_scaler(model, planted, constants)
    expected, wanted = plain_with_scaler(planted, constants, 2 if type(model) is GPipe else 1)
    assert scales == expected
    assert all(torch.equal(value, wanted[key]) for key, value in weights.items())


def scalers_on_ranks() -> list[list[tuple]]:
    def own(batch: tuple) -> tuple:
        return tuple(tensor.chunk(2)[dist.get_rank()] for tensor in batch)

    engines = [DataParallel, *(partial(ZeRO, stage=stage, optimizer=small_adam) for stage in (1, 2, 3))]
    return [[with_scaler(make(marked_network()), *case, own) for make in engines] for case in CASES]


@pytest.mark.slow
def test_an_overflow_on_one_rank_is_one_on_all() -> None:
    assert any(len(overflows) == 1 for planted, _ in CASES for overflows in planted) and ROWS % 2 == 0
    for of_rank in launch(scalers_on_ranks, 2):
        for case, engines in zip(CASES, of_rank):
            expected, wanted = plain_with_scaler(*case, 2)
            for scales, weights in engines:
                assert scales == expected
                for key, value in weights.items():
                    assert torch.equal(value, wanted[key]), key
