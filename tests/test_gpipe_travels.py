"""A pipeline is copied, pickled, saved, loaded, cast and forked like any module, at any time."""

import copy
import io
import multiprocessing
import os
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fewgpu import GPipe, get_devices
from tests.pipes import CHECKPOINTS, cut, program

FORKS = pytest.mark.skipif(not hasattr(os, 'fork'), reason='this system has no fork')


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def pipeline(balance: tuple[int, ...] = (2, 2), **options: Any) -> GPipe:
    return GPipe(layers(), balance, devices=['cpu'] * len(balance), chunks=3, **options)


def step(model: nn.Module) -> None:
    model(torch.rand(6, 4)).sum().backward()


def saved(state: dict) -> dict:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def balances() -> st.SearchStrategy:
    return st.sampled_from([(4,), (1, 3), (2, 2), (3, 1), (1, 2, 1), (1, 1, 1, 1)])


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
@pytest.mark.parametrize('before', ['nothing', 'forward', 'backward'])
@pytest.mark.parametrize('duplicate', [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
                         ids=['deepcopy', 'pickle'])
def test_a_copy_works_and_shares_nothing_with_its_model_at_any_time(
        duplicate, before: str, checkpoint: str) -> None:
    model = pipeline(checkpoint=checkpoint)
    output = None if before == 'nothing' else model(torch.rand(6, 4))
    if before == 'backward':
        output.sum().backward()
    other = duplicate(model)
    x, expected = torch.rand(6, 4), [p.clone() for p in model.parameters()]
    torch.testing.assert_close(other.eval()(x), model.eval()(x))
    other.train(), model.train()
    step(other)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.sub_(parameter.grad)
    assert all(torch.equal(p, e) for p, e in zip(model.parameters(), expected))
    assert [layer for part in other.partitions for layer in part] == list(other)
    if before == 'forward':   # its backward is still to come, and may
        output.sum().backward()


@settings(max_examples=15)
@given(one=balances(), other=balances())
def test_a_checkpoint_moves_between_the_plain_model_and_any_balance(
        one: tuple[int, ...], other: tuple[int, ...]) -> None:
    plain, x = layers(), torch.rand(6, 4)
    step(plain)   # so that the statistics are no defaults
    first, second, again = pipeline(one), pipeline(other), layers()
    first.load_state_dict(saved(plain.state_dict()), strict=True)
    second.load_state_dict(saved(first.state_dict()), strict=True)
    again.load_state_dict(saved(second.state_dict()), strict=True)
    expected = plain.eval()(x)
    for model in (first, second, again):
        torch.testing.assert_close(model.eval()(x), expected)
    assert list(first.state_dict()) == list(second.state_dict()) == list(plain.state_dict())


def test_parameters_that_are_assigned_are_the_ones_that_train() -> None:
    model, plain = pipeline(), layers()
    step(model)
    state = {name: tensor.clone() + 1 for name, tensor in plain.state_dict().items()}
    model.load_state_dict(state, assign=True)
    plain.load_state_dict(state)
    assert model[0].weight.data_ptr() == state['0.weight'].data_ptr()
    x = torch.rand(6, 4)
    torch.testing.assert_close(model.eval()(x), plain.eval()(x))
    step(model)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize('cast, dtype', [('double', torch.float64), ('bfloat16', torch.bfloat16),
                                         ('half', torch.float16), ('float', torch.float32)])
def test_a_model_that_was_cast_computes_and_trains_in_its_new_type(cast: str, dtype) -> None:
    model = pipeline(checkpoint='always')
    step(model)
    model.zero_grad()
    getattr(model, cast)()
    output = model(torch.rand(6, 4, dtype=dtype))
    output.sum().backward()
    assert output.dtype == dtype
    assert {parameter.grad.dtype for parameter in model.parameters()} == {dtype}


@FORKS
def test_a_forked_child_trains_after_the_parent_did() -> None:
    """With operations of the caller that torch would spread over threads which the child lacks."""
    ended = program('''
import faulthandler, os, torch
from torch import nn
from fewgpu import GPipe
torch.set_num_threads(2)
model = GPipe(nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 64)), [1, 1, 1],
              devices=['cpu'] * 3, chunks=3)
def step():
    model(torch.rand(600, 64)).square().sum().backward()
    return float((torch.rand(500, 500) @ torch.rand(500, 500)).sum())
step()
if (child := os.fork()) == 0:
    faulthandler.dump_traceback_later(60, exit=True)   # not to hang for ever
    step()
    os._exit(0)
print(os.waitpid(child, 0)[1])
step()
''')
    assert (ended.stdout, ended.returncode) == ('0\n', 0), ended.stderr


def norms(model: nn.Module, x: torch.Tensor, results) -> None:
    model(x).square().sum().backward()
    results.put([float(parameter.grad.norm()) for parameter in model.parameters()])


@pytest.mark.parametrize('method', [pytest.param('fork', marks=FORKS),
                                    pytest.param('spawn', marks=pytest.mark.slow)])
def test_a_process_that_is_given_the_model_computes_the_same(method: str) -> None:
    model, x = pipeline(), torch.rand(6, 4)
    step(model)
    model.zero_grad()
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=norms, args=(model, x, results))
    process.start()
    theirs = results.get(timeout=60)
    process.join(60)
    model(x).square().sum().backward()
    assert theirs == pytest.approx([float(p.grad.norm()) for p in model.parameters()])


@FORKS
def test_worker_processes_load_data_while_the_pipeline_trains() -> None:
    model, rows = pipeline(), 0
    loader = DataLoader(TensorDataset(torch.rand(36, 4)), batch_size=6, num_workers=2)
    for _ in range(2):
        for (x,) in loader:
            model(x).sum().backward()
            rows += len(x)
    assert rows == 72


def test_a_pickled_model_has_devices_like_its_models_and_a_deepcopy_has_the_same() -> None:
    devices = get_devices(2, kind='cpu', memory_limit=10**8)
    model = cut(nn.Linear(2, 2), nn.Linear(2, 2), devices=devices)
    other = pickle.loads(pickle.dumps(model))
    assert [d.name for d in other.stage_devices] == ['CPU 0', 'CPU 1']
    assert [d.memory_limit for d in other.stage_devices] == [10**8] * 2
    assert not set(other.stage_devices) & set(devices)
    assert copy.deepcopy(model).stage_devices == model.stage_devices
