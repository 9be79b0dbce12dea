"""An offloaded model and any loss, a store of an earlier release, a layer that raises."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fewgpu import launch
from fewgpu.device import Device, one_thread
from fewgpu.offload import HostStore, Offloaded
from fewgpu.zero import ZeRO

mse, sgd = nn.functional.mse_loss, partial(torch.optim.SGD, lr=0.1)


def net(width: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).double()


LOSSES = {
    'weighted': partial(nn.functional.cross_entropy, weight=torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)),
    'a module': nn.CrossEntropyLoss(weight=torch.tensor([3.0, 1.0, 2.0, 4.0], dtype=torch.float64)),
    'some rows ignored': nn.functional.cross_entropy,
    'a sum': partial(nn.functional.cross_entropy, reduction='sum'),
    'of pairs of rows': lambda outputs, targets: (outputs.cos().mean(0).square() - targets.sum()).square().mean(),
}


@given(st.sampled_from(sorted(LOSSES)), st.integers(1, 6), st.booleans(), st.integers(0, 99))
def test_a_loss_that_sees_all_rows_may_be_any(name: str, rows: int, recompute: bool, seed: int) -> None:
    loss_fn, generator = LOSSES[name], torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, 4, generator=generator).double(), torch.randint(4, (rows,), generator=generator)
    if name == 'some rows ignored' and rows > 1:
        y[1::2] = -100
    plain, model = net(), Offloaded(net(), loss_fn=loss_fn, optimizer=sgd, device='cpu', recompute=recompute)
    optimizer = sgd(plain.parameters())
    with one_thread():
        for _ in range(2):
            loss = loss_fn(plain(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert torch.equal(model.step(x, y), loss.detach())
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in plain.state_dict().items())


@pytest.mark.parametrize('name, said', [
    ('weighted', 'a weighted mean does not add up'), ('a module', 'a weighted mean does not add up'),
    ('some rows ignored', 'targets of -100 are left out'), ('of pairs of rows', 'and it is none')])
def test_in_several_micro_batches_it_has_to_add_up(name: str, said: str) -> None:
    model = Offloaded(net(), loss_fn=LOSSES[name], optimizer=sgd, device='cpu')
    before = model.state_dict()
    y = torch.tensor([0, 1, 2, -100] if name == 'some rows ignored' else [0, 1, 2, 3])
    with pytest.raises(ValueError, match=said):
        model.step(torch.randn(4, 4).double(), y, chunks=2)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize('said', [{'made'}, {'made', 'optimizer'}])
def test_a_store_of_an_earlier_release_is_gone_on_with(said: set[str]) -> None:
    """Its manifest does not say what made the optimizers, or not even their kind."""
    make = partial(Offloaded, loss_fn=mse, optimizer=sgd, device='cpu')
    batches = [tuple(torch.randn(2, 3, 4).double()) for _ in range(2)]
    with HostStore() as store, HostStore() as other:
        for kept in (store, other):
            make(net(), store=kept).step(*batches[0])
        manifest = store.about('manifest')
        for written in manifest:
            about = written['about']
            written['about'] = about and {key: value for key, value in about.items() if key not in said}
            if about:
                written['about']['facts'] = {key: value for key, value in about['facts'].items() if key not in said}
        store.write('manifest', [], manifest)
        again, expected = make(net(), store=store), make(net(), store=other)
        assert again.steps == 1
        assert torch.equal(again.step(*batches[1]), expected.step(*batches[1]))
        assert make(net(), store=store).steps == 2
        with pytest.raises(ValueError, match='the store holds another model'):
            make(net(6), store=store)


class Breaks(nn.Module):
    """A layer with a parameter that raises in its `run`-th forward."""

    def __init__(self, run: int) -> None:
        super().__init__()
        self.scale, self.run = nn.Parameter(torch.ones(4, dtype=torch.float64)), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.run -= 1
        if self.run == 0:
            raise ArithmeticError('broken')
        return x * self.scale


def test_an_error_of_an_offloaded_layer_names_it() -> None:
    x, y = torch.randn(2, 4, 4).double()
    for index in range(4):
        for run, doing in ((1, 'forward'), (3, 'backward')):   # two micro-batches: the third run is a recompute
            layers = [*net()]
            layers.insert(index, Breaks(run))
            last = index == len(layers) - 1
            if last and run == 3:
                continue   # it is not recomputed
            model = Offloaded(nn.Sequential(*layers), loss_fn=mse, optimizer=sgd, device='cpu')
            with pytest.raises(ArithmeticError, match='broken') as caught:
                model.step(x, y, chunks=2)
            note, = caught.value.__notes__
            doing = 'forward, loss and backward' if last else doing
            assert note.startswith(f'in layer {index} (Breaks) on CPU 0, {doing}, at ')
            assert note.endswith(": raise ArithmeticError('broken')")
            model.module[index].run = 1
            with pytest.raises(ArithmeticError) as caught:
                model.evaluate(x)
            assert caught.value.__notes__[0].startswith(f'in layer {index} (Breaks) on CPU 0, forward, at ')


def broken_on_ranks() -> None:
    x = torch.ones(2, 4).double()
    for stage in (1, 3):
        for index in range(3):
            layers = [layer for layer in net() if not isinstance(layer, nn.Tanh)]
            layers.insert(index, Breaks(1))
            with pytest.raises(ArithmeticError, match='broken') as caught:
                ZeRO(nn.Sequential(*layers), stage=stage, optimizer=sgd)(x)
            note, = caught.value.__notes__
            rank = torch.distributed.get_rank()
            assert note.startswith(f'in unit {index} (Breaks, with {index}.scale) on rank {rank}, forward, at ')


@pytest.mark.slow
def test_an_error_of_a_unit_of_zero_names_it() -> None:
    launch(broken_on_ranks, 2)


def test_an_error_of_a_store_names_the_layer_that_was_read_or_written() -> None:
    class Full(HostStore):
        left: Any = None

        def _write(self, *what: Any) -> None:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise OSError('full')
            super()._write(*what)

    with Full() as store:
        model = Offloaded(net(), loss_fn=mse, optimizer=sgd, device=Device('cpu'), store=store)
        store.left = 0   # the last layer is updated first
        with pytest.raises(OSError, match='full') as caught:
            model.step(*torch.randn(2, 4, 4).double())
        assert any(note.startswith('in layer 2 (Linear) on CPU 0, update') for note in caught.value.__notes__)
        assert not any('in layer 1' in note or 'in layer 0' in note for note in caught.value.__notes__)
