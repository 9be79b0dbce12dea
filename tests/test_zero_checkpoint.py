"""What ZeRO saves on one number of ranks goes on training on another, as if nothing had happened."""

import copy
import random
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from fewgpu.launch import launch
from fewgpu.zero import ZeRO
from tests.replicas import network, rows

ADAM = partial(torch.optim.Adam, lr=0.01)
ROWS = 12   # of a mini-batch, of all ranks


def _batch(seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return rows(seed + step, ROWS, 0)


def _train(model: ZeRO, seed: int, steps: range) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in steps:
        x, y = (tensor.tensor_split(size)[rank] for tensor in _batch(seed, step))
        F.mse_loss(model(x), y).backward()
        model.step()


def _save(seed: int, stage: int, steps: int, folder: Path) -> None:
    model = ZeRO(network(seed), stage=stage, optimizer=ADAM)
    _train(model, seed, range(steps))
    saved = {'model': model.state_dict(), 'optimizer': model.optimizer_state()}
    if dist.get_rank() == 0:
        torch.save(saved, folder / f'{seed}.pt')


def _go_on(seed: int, stage: int, steps: range, folder: Path) -> None:
    saved = torch.load(folder / f'{seed}.pt', weights_only=True)
    model = ZeRO(_other(seed), stage=stage,
                 optimizer=partial(torch.optim.Adam, lr=0.5))   # what is loaded counts
    assert model.load_state_dict(saved['model']).missing_keys == []
    model.load_optimizer_state(saved['optimizer'])
    _train(model, seed, steps)
    plain = _plain(seed, steps.stop)
    found, states = model.state_dict(), model.optimizer_state()
    for number, (name, parameter) in enumerate(plain[0].named_parameters()):
        why = f'seed {seed}, stage {stage}, {name}'
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-9, atol=1e-10,
                                   msg=lambda m: f'{why}: {m}')
        expected = plain[1].state_dict()['state'][number]
        assert states['state'][name].keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(states['state'][name][key], value, rtol=1e-9, atol=1e-12,
                                       msg=lambda m: f'{why}, {key}: {m}')


def _other(seed: int) -> nn.Sequential:
    """The same layers, with other numbers."""
    module = network(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 1
    return module


def _plain(seed: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = network(seed)
    optimizer = ADAM(module.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        x, y = _batch(seed, step)
        F.mse_loss(module(x), y).backward()
        optimizer.step()
    return module, optimizer


def _all_save(cases: list[tuple[int, int, int]], folder: Path) -> None:
    for seed, stage, steps in cases:
        _save(seed, stage, 3, folder)


def _all_go_on(cases: list[tuple[int, int, int]], folder: Path) -> None:
    for seed, _, stage in cases:
        _go_on(seed, stage, range(3, 6), folder)


@pytest.mark.slow
def test_two_ranks_save_and_others_go_on_as_plain_adam_would(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f'seed {seed}')
    cases = [(seed + number, before, after) for number, (before, after) in enumerate(
        [(1, 3), (2, 2), (3, 1), (3, 3)])]
    launch(_all_save, 2, args=(cases, tmp_path))
    for ranks in (3, 1):
        launch(_all_go_on, ranks, args=(cases, tmp_path))


def _saves_the_precise_copy() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    for stage in (1, 2, 3):
        model = ZeRO(copy.deepcopy(plain), stage=stage, optimizer=ADAM, precision=torch.bfloat16)
        for name, value in plain.state_dict().items():
            assert torch.equal(model.state_dict()[name], value)   # rounded, they would differ
        later = {name: value + 1e-4 for name, value in plain.state_dict().items()}
        model.load_state_dict(later)
        assert all(torch.equal(model.state_dict()[name], value) for name, value in later.items())
        x = torch.rand(2, 7)
        expected = copy.deepcopy(plain)
        expected.load_state_dict(later)
        assert torch.equal(model(x), expected.bfloat16()(x.bfloat16()))


def _refuses_what_belongs_to_another_model() -> None:
    model = ZeRO(network(1), stage=3, optimizer=ADAM)
    with pytest.raises(RuntimeError, match='Missing key'):
        model.load_state_dict({})
    with pytest.raises(ValueError, match='assign'):
        model.load_state_dict(model.state_dict(), assign=True)
    state = model.optimizer_state()
    state['options']['another'] = state['options'].pop('0.weight')
    with pytest.raises(ValueError, match='belongs to another model.*0.weight'):
        model.load_optimizer_state(state)
    state['state']['0.weight'] = {'exp_avg': torch.zeros(1, 1, 1)}
    state['options']['0.weight'] = state['options'].pop('another')
    with pytest.raises(ValueError, match='exp_avg'):
        model.load_optimizer_state(state)


def _both() -> None:
    _saves_the_precise_copy()
    _refuses_what_belongs_to_another_model()


@pytest.mark.slow
def test_precise_copies_are_saved_and_loaded_and_states_of_other_models_refused() -> None:
    launch(_both, 2)
