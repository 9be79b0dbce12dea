"""A run that was saved in the middle of an epoch goes on bit for bit on every engine, and on any other one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fewgpu import launch
from fewgpu.checkpoint import Checkpoints, Saved, load_training_state, training_state
from fewgpu.collectives import Group
from fewgpu.hybrid import parallelize
from fewgpu.models import gpt, next_token_loss
from fewgpu.tensor_transformer import tensor_parallel
from tests.runs import (ENGINES, LONG, ON_RANKS, STEPS, Engine, adam, batches, interrupted_run, mare, momentum, network,
                        own_rows, smooth, whole_run)


def remade(make_run: Callable, optimizer: Callable) -> Callable[[], Any]:
    return lambda: make_run(network(), optimizer, 2)


@pytest.mark.parametrize('optimizer', (adam, momentum))
@pytest.mark.parametrize('name', [*ENGINES, *LONG])
def test_a_run_goes_on_bit_for_bit(name: str, optimizer: Callable, tmp_path: Path) -> None:
    make = remade({**ENGINES, **LONG}[name], optimizer)
    whole = whole_run(make, batches())
    for at in (1, 4):
        assert interrupted_run(make, batches(), tmp_path / f'{at}', at) == whole


@pytest.mark.parametrize('at', range(1, STEPS))
def test_pipemare_remembers_how_far_it_has_annealed_and_where_its_weights_go(at: int, tmp_path: Path) -> None:
    make = remade(LONG['pipemare, long runs'], mare)
    assert interrupted_run(make, batches(), tmp_path, at) == whole_run(make, batches())
    state = Checkpoints(tmp_path).latest().whole('optimizer')
    assert state['options']['0.weight']['late_updates'] > 0
    assert state['state']['0.weight']['delta'].abs().sum() > 0


def taken(run: Any) -> tuple[dict, dict]:
    state = training_state(run.model, run.optimizer)
    return state['model'], state['optimizer']


def assert_equal(one: Any, other: Any, why: str) -> None:
    assert one.keys() == other.keys(), why
    for key, value in one.items():
        if isinstance(value, dict):
            assert_equal(value, other[key], f'{why}: {key}')
        else:
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[key])), f'{why}: {key}'


CHUNKS = {name: 1 if name == 'pipedream' else 2 for name in ENGINES}   # with one update a mini-batch


@pytest.mark.parametrize('optimizer', (adam, momentum))
@pytest.mark.parametrize('source', ENGINES)
def test_a_run_moves_to_every_other_engine(source: str, optimizer: Callable) -> None:
    """Weights and what optimizers remember stay what they are; the next step is the plain model's."""
    run = ENGINES[source](smooth(), optimizer, CHUNKS[source])
    for batch in batches()[:3]:
        run.step(*batch)
    state = training_state(run.model, run.optimizer)
    for name in ENGINES:
        moved = ENGINES[name](smooth(), optimizer, CHUNKS[name])
        load_training_state(Saved(3, [state]), moved.model, moved.optimizer)
        model, remembered = taken(moved)
        assert_equal(model, state['model'], f'{source} -> {name}')
        assert_equal(remembered['state'], state['optimizer']['state'], f'{source} -> {name}')
        if name == 'pipedream 2-1':   # updates more often than once a mini-batch
            continue
        moved.step(*batches()[3])
        plain = ENGINES['plain'](smooth(), optimizer, 1)
        load_training_state(Saved(3, [state]), plain.model, plain.optimizer)
        plain.step(*batches()[3])
        torch.testing.assert_close(moved.model.state_dict(), plain.model.state_dict(), check_device=False)


def assert_kept_once(saved: Saved, parameters: list[str], why: str) -> None:
    """Replicas, and parts, have the same: a checkpoint has one copy."""
    for name in parameters:
        for keeps in (lambda part: part['model'], lambda part: part['optimizer'].get('state', ()),
                      lambda part: part['optimizer'].get('options', ())):
            assert sum(name in keeps(part) for part in saved.parts) == 1, f'{why}: {name}'


def own(name: str) -> list:
    return [own_rows(name, batch) for batch in batches()]


def goes_on_here(folder: str) -> dict[str, list]:
    found = {}
    for name, make_run in ON_RANKS.items():
        make = remade(make_run, adam)
        found[name] = [whole_run(make, own(name)), interrupted_run(make, own(name), os.path.join(folder, name), 3)]
    return found


@pytest.mark.slow
def test_runs_on_ranks_go_on_bit_for_bit(tmp_path: Path) -> None:
    for of_rank in launch(goes_on_here, 2, args=(str(tmp_path),)):
        for name, (whole, interrupted) in of_rank.items():
            assert interrupted == whole, name


def trains_and_saves(folder: str) -> None:
    for name, make_run in ON_RANKS.items():
        run = make_run(smooth(), adam, 2)
        load_training_state(Checkpoints(os.path.join(folder, 'start')).latest(), run.model, run.optimizer, **run.more)
        for batch in own(name)[1:3]:
            run.step(*batch)
        Checkpoints(os.path.join(folder, name)).save(3, training_state(run.model, run.optimizer, **run.more))


@pytest.mark.slow
def test_a_run_moves_from_one_process_to_ranks_and_back(tmp_path: Path) -> None:
    """One step of the plain model, two on ranks, one of the plain model again: as four of it."""
    def plain() -> Any:
        torch.manual_seed(5)
        run = ENGINES['plain'](smooth(), adam, 1)
        run.step(*batches()[0])
        return run

    start, expected = plain(), plain()
    Checkpoints(tmp_path / 'start').save(1, training_state(start.model, start.optimizer, **start.more))
    for batch in batches()[1:3]:
        expected.optimizer.param_groups[0]['lr'] = 0.05   # the engines have their own
        expected.step(*batch)
    launch(trains_and_saves, 2, args=(str(tmp_path),))
    wanted = taken(expected)
    for name in ON_RANKS:
        assert_kept_once(Checkpoints(tmp_path / name).latest(), [*dict(smooth().named_parameters())], name)
    for name in set(ON_RANKS) - {'pipedream', 'DataParallel'}:   # by other rules, and with a schedule of the rate
        saved = Checkpoints(tmp_path / name).latest()
        for target in ('plain', '1f1b', 'Spilled', 'Offloaded'):
            moved = ENGINES[target](smooth(), adam, 2)
            load_training_state(saved, moved.model, moved.optimizer)
            model, remembered = taken(moved)
            for found, of_plain in ((model, wanted[0]), (remembered['state'], wanted[1]['state'])):
                torch.testing.assert_close(found, of_plain, msg=lambda m: f'{name} -> {target}: {m}')


@pytest.mark.parametrize('name', ('1f1b', 'gems', 'pipedream 2-2'))
def test_what_is_loaded_counts_in_all_replicas(name: str) -> None:
    """Running statistics, too, with which each evaluates its own micro-batches."""
    plain = network()
    for x, _ in batches():
        plain(x)
    run = ENGINES[name](network(), adam, 2)
    run.model.load_state_dict(plain.state_dict())
    x = batches()[0][0]
    torch.testing.assert_close(run.model.eval_step(x), plain.eval()(x))


# Grids of ranks, and tensor-parallel parts

def words() -> list:
    torch.manual_seed(1)
    return [(torch.randint(0, 6, (8, 5)), torch.randint(0, 6, (8, 5))) for _ in range(4)]


def language_model() -> nn.Sequential:
    return gpt(2, 8, 2, vocabulary=6, longest=5).double()


def tensor_cut() -> Any:
    class Run:
        def __init__(self) -> None:
            self.model = tensor_parallel(language_model(), Group())
            self.optimizer, self.more = adam(self.model.parameters()), {}

        def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
            self.optimizer.zero_grad()
            loss = next_token_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss.item()

    return Run()


def on_grids(strategies: list[str], folder: str) -> dict[str, list]:
    found = {}
    for strategy in strategies:
        def make(strategy: str = strategy) -> Any:
            if strategy == 'tensor':
                return tensor_cut()
            return Engine(parallelize(language_model(), strategy, loss_fn=next_token_loss, optimizer=adam, chunks=2))
        whole = whole_run(make, words())
        found[strategy] = [whole, interrupted_run(make, words(), os.path.join(folder, strategy), 2)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize('strategies', (['2x2', '1x2x2', '2x1x2'], ['1x2', '1x1x2', 'tensor']))
def test_grids_and_tensor_parallel_parts_go_on_bit_for_bit_and_elsewhere(strategies: list[str], tmp_path: Path) -> None:
    found = launch(on_grids, 4 if '2x2' in strategies else 2, args=(strategies, str(tmp_path)))
    for of_rank in found:
        for strategy, (whole, interrupted) in of_rank.items():
            assert interrupted == whole, strategy
    plain = language_model()
    optimizer = adam(plain.parameters())
    for strategy in strategies:
        assert_kept_once(Checkpoints(tmp_path / strategy).latest(), [*dict(plain.named_parameters())], strategy)
    load_training_state(Checkpoints(tmp_path / strategies[0]).latest(), plain, optimizer)
    wanted = training_state(plain, optimizer)
    for strategy in strategies[1:]:   # all have gone the same way
        load_training_state(Checkpoints(tmp_path / strategy).latest(), plain, optimizer)
        reached = training_state(plain, optimizer)
        for what in ('model', 'optimizer'):
            torch.testing.assert_close(reached[what], wanted[what], msg=lambda m: f'{strategy}, {what}: {m}')
