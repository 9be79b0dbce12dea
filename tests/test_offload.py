"""An offloaded model trains as the plain one does, bit for bit, in a device that holds little of it."""

import contextlib
import copy
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu.device import Device, one_thread
from fewgpu.microbatch import scatter
from fewgpu.offload import DiskStore, HostStore, Offloaded, StoreError
from fewgpu.rng import StepSeed, Stream
from fewgpu.tiled import TiledLinear
from tests import killed
from tests.networks import Case, cases, seeded
from tests.reference import casting

OPTIMIZERS = {
    'adam': lambda parameters: torch.optim.Adam(parameters, lr=0.03),
    'adamw': lambda parameters: torch.optim.AdamW(parameters, lr=0.03, amsgrad=True),
    'momentum': lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    'adagrad': lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),   # has states from the start
    'plain': lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


class Loss:
    """Of any outputs; the targets only count rows."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        loss = self.case.loss(outputs)
        return torch.zeros(()) if loss is None else loss


def train_plainly(case: Case, steps: int, make: Callable, autocast: torch.dtype | None = None
                  ) -> tuple[nn.Module, list[torch.Tensor]]:
    """Micro-batch by micro-batch, with the random streams of layers and micro-batches."""
    model, losses = case.model(), []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make(trained) if trained else None
    with seeded(case.seed), one_thread():
        for step in range(steps):
            seed, parts = StepSeed(), []
            for i, part in enumerate(scatter(case.inputs(step), case.micro_batches)):
                for k, layer in enumerate(model):
                    with casting(autocast), Stream(seed, k, i, torch.device('cpu')):
                        part = layer(part)
                with casting(autocast):
                    loss = Loss(case)(part, None) * (rows(case, i) / case.rows)
                if loss.requires_grad:
                    loss.backward()
                parts.append(loss.detach())
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(torch.stack(parts).sum())
    return model, losses


def rows(case: Case, i: int) -> int:
    return case.rows // case.micro_batches + (i < case.rows % case.micro_batches)


def offloaded(case: Case, make: Callable, **options: Any) -> Offloaded:
    return Offloaded(case.model(), optimizer=make, loss_fn=Loss(case), **{'device': Device('cpu'), **options})


def train(model: Offloaded, case: Case, steps: range, autocast: torch.dtype | None = None) -> list[torch.Tensor]:
    losses = []
    for step in steps:
        with casting(autocast):
            losses.append(model.step(case.inputs(step), torch.zeros(case.rows), case.chunks))
    return losses


def assert_same(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    assert list(ours) == list(plain)
    wrong = [name for name in plain if not torch.equal(ours[name], plain[name])]
    assert not wrong, {name: (ours[name], plain[name]) for name in wrong}


@given(cases(inputs_need_gradient=False, used=(True,)), st.sampled_from([*OPTIMIZERS]), st.integers(0, 4),
       st.booleans(), st.booleans(), st.sampled_from([None, None, torch.bfloat16]))
def test_trains_as_the_plain_model_bit_for_bit(case, name, depth, recompute, on_disk, autocast):
    make, recompute = OPTIMIZERS[name], recompute or case.has('bounds')
    plain, losses = train_plainly(case, 3, make, autocast)
    with (DiskStore() if on_disk else HostStore()) as store:
        model = offloaded(case, make, store=store, depth=depth, recompute=recompute)
        with seeded(case.seed):
            ours = train(model, case, range(3), autocast)
        assert torch.equal(torch.stack(ours), torch.stack(losses))
        assert_same(model.state_dict(), plain.state_dict())
        plain.eval()
        with one_thread(), torch.no_grad():
            out = plain(case.inputs(9))
        assert str(model.evaluate(case.inputs(9))) == str(out)


@given(cases(inputs_need_gradient=False, used=(True,)), st.sampled_from([*OPTIMIZERS]), st.integers(0, 3),
       st.booleans())
def test_goes_on_from_its_store(case, name, stop, apart):
    make = OPTIMIZERS[name]
    plain, _ = train_plainly(case, 3, make)
    with DiskStore() as outer, seeded(case.seed):
        for steps in (range(stop), range(stop, 3)):
            with (DiskStore(outer.folder / 'weights') as store,
                  DiskStore(outer.folder / 'states') if apart else contextlib.nullcontext() as states):
                other = copy.deepcopy(case.model())
                with torch.no_grad():
                    for parameter in other.parameters():
                        parameter.add_(steps.start)   # what is in the store counts
                model = Offloaded(other, optimizer=make, loss_fn=Loss(case), device=Device('cpu'), store=store,
                                  states=states)
                assert model.steps == steps.start
                train(model, case, steps)
                found = model.state_dict()
        assert_same(found, plain.state_dict())


def chain(layers: int, width: int = 96) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def adam(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@settings(max_examples=8)
@given(st.integers(0, 4), st.integers(1, 3), st.integers(0, 99))
def test_a_model_ten_times_the_device_trains_as_on_a_large_one(depth, chunks, seed):
    torch.manual_seed(seed)
    module, x, y = chain(80), torch.randn(3, 96), torch.randn(3, 96)
    size = sum(parameter.nbytes for parameter in module.parameters())
    plain = copy.deepcopy(module)
    small = Device('cpu', memory_limit=size // 10)
    model = Offloaded(module, optimizer=adam, loss_fn=nn.functional.mse_loss, device=small, depth=depth)
    assert small.ledger.allocated == 0
    optimizer = adam(plain.parameters())
    for _ in range(2):
        with one_thread():
            optimizer.zero_grad()
            for part, target in zip(x.tensor_split(chunks), y.tensor_split(chunks)):
                (nn.functional.mse_loss(plain(part), target) * (len(part) / 3)).backward()
            optimizer.step()
        model.step(x, y, chunks)
    assert_same(model.state_dict(), plain.state_dict())
    assert small.ledger.allocated == 0
    # In use and on its way; gradients of this unit, of a micro-batch of it, and of the unit before; inputs
    # of all units, and what one keeps.
    unit, row = size // 80, 96 * 4
    assert small.ledger.peak <= (3 + (depth > 0) + (chunks > 1)) * unit + 3 * row * (80 + 10)


@given(st.integers(1, 5), st.integers(2, 8))
def test_nothing_is_loaded_further_ahead_than_asked(depth, layers):
    """Reading as far as `depth` visits, but on the device is one unit at most besides the one in use."""
    model = Offloaded(chain(layers, 8), optimizer=adam, loss_fn=nn.functional.mse_loss, device=Device('cpu'),
                      depth=depth)
    model.step(torch.ones(2, 8), torch.ones(2, 8))
    starts = {step: [span.start for span in model.spans if span.step == step] for step in ('wait', 'read', 'copy')}
    assert {len(found) for found in starts.values()} == {2 * layers - 1}
    for step, ahead in (('read', depth), ('copy', 1)):
        assert all(waited <= begun for waited, begun in zip(starts['wait'], starts[step][ahead:])), step


def test_a_device_that_is_too_small_for_a_layer_says_so():
    model = Offloaded(chain(3), optimizer=adam, loss_fn=nn.functional.mse_loss,
                      device=Device('cpu', memory_limit=36_000))
    with pytest.raises(torch.OutOfMemoryError):
        model.step(torch.ones(2, 96), torch.ones(2, 96))


class Filling(DiskStore):
    """Full after so many more writes."""

    writes = 10**9

    def _write(self, *what: Any) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise StoreError('full')
        super()._write(*what)


@given(cases(inputs_need_gradient=False, used=(True,)), st.integers(0, 12), st.integers(0, 3))
def test_a_step_that_fails_changes_nothing_and_can_be_repeated(case, writes, depth):
    plain, _ = train_plainly(case, 2, OPTIMIZERS['adam'])
    with Filling() as store, seeded(case.seed):
        model = offloaded(case, OPTIMIZERS['adam'], store=store, depth=depth)
        train(model, case, range(1))
        before, names, generator = model.state_dict(), store.names(), torch.get_rng_state()
        store.writes = writes
        with contextlib.suppress(StoreError):
            train(model, case, range(1, 2))
        if model.steps == 1:
            assert_same(model.state_dict(), before)
            assert store.names() == names
            store.writes = 10**9
            torch.set_rng_state(generator)
            train(model, case, range(1, 2))
        assert_same(model.state_dict(), plain.state_dict())
        assert not [thread for thread in threading.enumerate() if thread.name.startswith(('fewgpu ahead', 'fewgpu up'))]


@given(st.integers(1, 5), st.integers(0, 2), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_tiles_are_loaded_one_by_one(tiles, depth, chunks, bias, seed):
    torch.manual_seed(seed)
    large = TiledLinear.of(nn.Linear(16, 320, bias), tiles)
    module = nn.Sequential(nn.Linear(16, 16), nn.Sequential(large, nn.Tanh()), nn.Linear(320, 2))
    plain, x, y = copy.deepcopy(module), torch.randn(4, 16), torch.randn(4, 2)
    device = Device('cpu')
    device.meter()
    model = Offloaded(module, optimizer=adam, loss_fn=nn.functional.mse_loss, device=device, depth=depth)
    optimizer = adam(plain.parameters())
    for _ in range(2):
        with one_thread():
            optimizer.zero_grad()
            for part, target in zip(x.tensor_split(chunks), y.tensor_split(chunks)):
                (nn.functional.mse_loss(plain(part), target) * (len(part) / 4)).backward()
            optimizer.step()
        model.step(x, y, chunks)
    assert_same(model.state_dict(), plain.state_dict())
    tile = -(-320 // tiles) * 17 * 4
    # Its gradient beside it, or the next on its way; the last layer may be loaded ahead; activations.
    assert device.ledger.peak <= (2 + (depth > 0)) * tile + 322 * 2 * 4 * (1 + (depth > 0)) + 30_000


def test_states_of_another_model_are_not_touched(tmp_path):
    options = {'optimizer': adam, 'loss_fn': nn.functional.mse_loss, 'device': Device('cpu')}
    for name in 'ab':
        with DiskStore(tmp_path / name) as store, DiskStore(tmp_path / f'{name} states') as states:
            Offloaded(chain(2), **options, store=store, states=states).step(torch.ones(2, 96), torch.ones(2, 96))
    for name in ('a', 'new'):
        with DiskStore(tmp_path / name) as store, DiskStore(tmp_path / 'b states') as states:
            before = states.names()
            with pytest.raises(StoreError, match='those of another model'):
                Offloaded(chain(2), **options, store=store, states=states)
            assert states.names() == before
    with DiskStore(tmp_path / 'b') as store, DiskStore(tmp_path / 'b states') as states:
        assert Offloaded(chain(2), **options, store=store, states=states).steps == 1


def test_learning_rates_are_remembered():
    with HostStore() as store:
        for rate in (0.01, 0.5):
            model = Offloaded(chain(2), optimizer=adam, loss_fn=nn.functional.mse_loss, device=Device('cpu'),
                              store=store)
            assert [o.param_groups[0]['lr'] for o in model.optimizers] == [rate, rate]
            for optimizer in model.optimizers:
                optimizer.param_groups[0]['lr'] = 0.5
            model.step(torch.ones(2, 96), torch.ones(2, 96))


@given(cases(inputs_need_gradient=False, used=(True,)))
def test_a_state_dict_moves_freely(case):
    plain, _ = train_plainly(case, 1, OPTIMIZERS['adam'])
    model = offloaded(case, OPTIMIZERS['adam'])
    assert_same(model.state_dict(), case.model().state_dict())
    model.load_state_dict(plain.state_dict())
    assert_same(model.state_dict(), plain.state_dict())
    for wrong in ({**plain.state_dict(), 'other': torch.ones(1)}, dict([*plain.state_dict().items()][1:])):
        if len(wrong) != len(plain.state_dict()):
            with pytest.raises(ValueError, match='of another model: '):
                model.load_state_dict(wrong)
    case.model().load_state_dict(model.state_dict())


def test_what_cannot_be_is_refused():
    options = {'optimizer': adam, 'loss_fn': nn.functional.mse_loss, 'device': Device('cpu')}
    model = chain(2)
    with pytest.raises(TypeError, match='pass what makes it'):
        Offloaded(model, **{**options, 'optimizer': adam(model.parameters())})
    with pytest.raises(ValueError, match='at least 0 units'):
        Offloaded(model, **options, depth=-1)
    with pytest.raises(TypeError, match='the depth is a whole number'):
        Offloaded(model, **options, depth=1.5)
    with pytest.raises(TypeError, match='nn.Sequential'):
        Offloaded(nn.Linear(2, 2), **options)
    with pytest.raises(ValueError, match='has no layer'):
        Offloaded(nn.Sequential(), **options)
    with HostStore() as store:
        Offloaded(chain(2), **options, store=store)
        with pytest.raises(ValueError, match='a store of its own'):
            Offloaded(chain(3), **options, store=store)
    with pytest.raises(ValueError, match='2 rows of targets for 3 rows'):
        Offloaded(model, **options).step(torch.ones(3, 96), torch.ones(2, 96))
    bounded = nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match='use recompute=True'):
        Offloaded(bounded, **options, recompute=False).step(torch.arange(3), torch.ones(3, 4))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == 'win32', reason='kills by a signal')
def test_killed_at_any_moment_it_is_as_after_a_whole_step():
    reference = killed.opened(HostStore())
    after, told, took = [reference.state_dict()], 0, 0.0
    with DiskStore() as outer:
        folder = outer.folder / 'inner'
        for _ in range(10):
            process = subprocess.Popen([sys.executable, '-P', killed.__file__, folder], stdout=subprocess.PIPE,
                                       text=True, env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
            try:
                assert process.stdout.readline() == 'open\n'
                start = time.perf_counter()
                if not took:   # the first time: how long is a step?
                    told = int(process.stdout.readline())
                    took = time.perf_counter() - start
                time.sleep(random.uniform(0.0, 2 * took))
            finally:
                process.kill()
            told = max([told, *map(int, process.communicate()[0].split())])
            with DiskStore(folder) as store:
                model = killed.opened(store)
                assert model.steps >= told   # what was told as done is done
                while len(after) <= model.steps:
                    killed.step(reference)
                    after.append(reference.state_dict())
                assert_same(model.state_dict(), after[model.steps])


def test_a_store_is_gone_on_with_by_the_same_kind_of_optimizer_and_its_options():
    with HostStore() as store:
        make = partial(Offloaded, loss_fn=nn.functional.mse_loss, device=Device('cpu'), store=store)
        make(chain(2, 4), optimizer=partial(torch.optim.SGD, lr=0.5)).step(torch.ones(1, 4), torch.ones(1, 4))
        module = chain(2, 4)
        with pytest.raises(ValueError, match='states of another optimizer'):
            make(module, optimizer=adam)
        assert all(parameter.numel() for parameter in module.parameters())   # it is as it was
        two = lambda ps: torch.optim.SGD([{'params': ps}, {'params': [nn.Parameter(torch.ones(1))]}])   # noqa: E731
        with pytest.raises(ValueError, match=r'1 group\(s\) of parameters in the store, and 2 here'):
            make(module, optimizer=two)
        assert all(parameter.numel() for parameter in module.parameters())   # it is as it was
        with pytest.warns(UserWarning, match='it began with lr=0.5 and not 0.1; to change'):
            again = make(module, optimizer=partial(torch.optim.SGD, lr=0.1))
        with warnings.catch_warnings(action='error'):   # by the same as at first
            make(chain(2, 4), optimizer=partial(torch.optim.SGD, lr=0.5))
        assert {group['lr'] for optimizer in again.optimizers for group in optimizer.param_groups} == {0.5}


def test_a_mini_batch_without_rows_is_refused():
    model = Offloaded(chain(2, 4), optimizer=adam, loss_fn=nn.functional.mse_loss, device=Device('cpu'))
    with pytest.raises(ValueError, match='at least one row'):
        model.step(torch.ones(0, 4), torch.ones(0, 4))
    assert model.steps == 0
