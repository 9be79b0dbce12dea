"""Pretended GPUs behave as GPUs do: where tensors are, what is refused, what is copied, and what a backward does."""

import copy
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from fewgpu.workshop.practice.gpus import PretendGpus, pretend_gpus

ONE, TWO = torch.device('cuda', 0), torch.device('cuda', 1)
MIXED = 'Expected all tensors to be on the same device, but found at least two devices'


@pytest.fixture
def gpus() -> Iterator[PretendGpus]:
    with pretend_gpus(3) as gpus:
        yield gpus


@pytest.mark.parametrize('moved', [
    lambda x: x.to('cuda:1'), lambda x: x.to(TWO), lambda x: x.to(1), lambda x: x.to(device='cuda:1'),
    lambda x: x.cuda(1), lambda x: torch.as_tensor(x, device=TWO), lambda x: x.to(TWO, non_blocking=True),
    lambda x: x.cuda('cuda:1'), lambda x: x.cuda(device=TWO, non_blocking=True),
    lambda x: x.to(torch.zeros(1, device=TWO)), lambda x: x.to(TWO, torch.float64),
    lambda x: x.cuda().to(TWO), lambda x: x.to(TWO, copy=True), lambda x: torch.empty(2, 3, device=TWO).copy_(x)])
def test_whatever_moves_a_tensor_moves_it(gpus: PretendGpus, moved: Callable) -> None:
    x = torch.rand(2, 3)
    there = moved(x)
    assert there.device == gpus.device_of(there) == TWO and there.is_cuda and there.get_device() == 1
    assert x.device.type == 'cpu' and not x.is_cuda and x.get_device() == -1
    assert torch.equal(there.cpu().to(x.dtype), x)


@pytest.mark.parametrize('moved', [
    lambda layer: layer.to(TWO), lambda layer: layer.to('cuda:1'), lambda layer: layer.to(1),
    lambda layer: layer.to(device=TWO), lambda layer: layer.to(device='cuda:1', non_blocking=True),
    lambda layer: layer.to(dtype=torch.float64, device=TWO), lambda layer: layer.to(TWO, torch.float64),
    lambda layer: layer.to(torch.rand(1, device=TWO)), lambda layer: layer.to(tensor=torch.rand(1, device=TWO)),
    lambda layer: layer.cuda(1), lambda layer: layer.cuda(device=TWO)])
def test_whatever_moves_a_module_moves_all_of_it(gpus: PretendGpus, moved: Callable) -> None:
    layer = nn.BatchNorm1d(3)
    assert moved(layer) is layer
    assert {tensor.device for tensor in layer.state_dict().values()} == {TWO}
    assert {move.destination for move in gpus.moves if move.shape == (3,)} == {TWO}


@pytest.mark.filterwarnings('ignore:To copy construct from a tensor')
@pytest.mark.parametrize('copied', [
    lambda x: torch.tensor(x, device=TWO), lambda x: torch.tensor(data=x, device=TWO),
    lambda x: torch.as_tensor(data=x, device=TWO), lambda x: torch.asarray(x, device=TWO)])
def test_a_tensor_that_is_made_of_another_is_a_copy_of_it(gpus: PretendGpus, copied: Callable) -> None:
    x = torch.rand(2, 3)
    assert copied(x).device == TWO and torch.equal(copied(x).cpu(), x)
    assert list(map(str, gpus.moves[:1])) == ['cpu -> cuda:1  2x3  24 bytes']


def test_a_tensor_that_is_there_is_not_copied(gpus: PretendGpus) -> None:
    x = torch.rand(2, device=ONE)
    assert x.to(ONE) is x and x.cuda() is x and x.to(0) is x and not gpus.moves
    assert x.to(ONE, copy=True) is not x and x.to(torch.float64).device == ONE


@pytest.mark.parametrize('made', [
    lambda x: x + 1, lambda x: x @ x.T, lambda x: x[0], lambda x: x.T.reshape(-1), lambda x: x.detach(),
    lambda x: x.data,
    lambda x: torch.zeros_like(x), lambda x: x.new_ones(2), lambda x: torch.cat([x, x]), lambda x: x.half(),
    lambda x: x.max(dim=1).indices, lambda x: x > 0, lambda x: x[torch.tensor([1, 0])], lambda x: x * torch.tensor(2.0),
    lambda x: torch.where(x > 0, x, torch.tensor(0.0)), lambda x: x.clone().requires_grad_(), copy.deepcopy,
    lambda x: nn.functional.dropout(x), lambda x: x.split(1)[1], lambda x: nn.functional.one_hot(x.argmax(1), 3),
    lambda x: torch.stack([x, x]).mean(), lambda x: x.mul_(2), lambda x: torch.randn(2, device=x.device)])
def test_a_result_is_where_its_tensors_are(gpus: PretendGpus, made: Callable) -> None:
    assert made(torch.rand(2, 3, device=TWO)).device == TWO
    assert made(torch.rand(2, 3)).device.type == 'cpu'


@pytest.mark.parametrize('mixed', [
    lambda x, y: x + y, lambda x, y: torch.cat([x, y]), lambda x, y: x @ y.T, lambda x, y: torch.equal(x, y),
    lambda x, y: nn.functional.mse_loss(x, y), lambda x, y: x.add_(y), lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: nn.Linear(3, 2).to(x.device)(y), lambda x, y: nn.Linear(3, 2)(x),
    lambda x, y: torch._foreach_add([x], [y])])
def test_tensors_on_two_devices_do_not_meet(gpus: PretendGpus, mixed: Callable) -> None:
    x, y = torch.rand(2, 3, device=ONE), torch.rand(2, 3, device=TWO)
    with pytest.raises(RuntimeError, match=MIXED):
        mixed(x, y)
    with pytest.raises(RuntimeError, match=f'{MIXED}.*cpu'):
        mixed(x, torch.ones(2, 3))
    with pytest.raises(RuntimeError, match=MIXED):
        x + y.sum()   # a number, but on a GPU


def test_there_is_no_gpu_beyond_the_last(gpus: PretendGpus) -> None:
    for ask in (lambda: torch.zeros(1).to('cuda:3'), lambda: torch.zeros(1, device='cuda:7'),
                lambda: nn.Linear(1, 1).cuda(3)):
        with pytest.raises(RuntimeError, match='invalid device ordinal'):
            ask()


def test_numbers_come_home_and_arrays_do_not(gpus: PretendGpus) -> None:
    x = torch.ones(2, device=TWO)
    assert x.sum().item() == 2 and x.tolist() == [1, 1] and f'{x.sum():.1f}' == '2.0' and "device='cuda:1'" in repr(x)
    with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
        x.numpy()
    assert x.cpu().numpy().sum() == 2


@pytest.mark.parametrize('make', [
    lambda: nn.LSTM(4, 4), lambda: nn.TransformerEncoderLayer(4, 2, 8), lambda: nn.BatchNorm1d(3),
    lambda: nn.LayerNorm(4),
    lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 4)), lambda: nn.Conv1d(3, 2, 1)])
def test_modules_run_where_they_are(gpus: PretendGpus, make: Callable[[], nn.Module]) -> None:
    module = make().to(TWO)
    assert {tensor.device for tensor in module.state_dict().values()} == {TWO}
    gpus.forget()
    output = module(torch.rand(2, 3, 4, device=TWO))
    output = output[0] if isinstance(output, tuple) else output
    assert output.device == TWO
    output.sum().backward()
    assert not gpus.moves
    assert {parameter.grad.device for parameter in module.parameters()} == {TWO}
    assert {parameter.device for parameter in copy.deepcopy(module).parameters()} == {TWO}


def two_parts() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()), nn.Linear(6, 3)


OPTIMIZERS = [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.Adam, torch.optim.AdamW,
              torch.optim.RMSprop, lambda p: torch.optim.Adam(p, foreach=False)]


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_training_over_two_gpus_is_training(optimizer: Callable) -> None:
    x, target = torch.rand(5, 4), torch.tensor([0, 1, 2, 1, 0])

    def train(first: nn.Module, second: nn.Module, devices: list[torch.device]) -> list[torch.Tensor]:
        parameters = [*first.to(devices[0]).parameters(), *second.to(devices[1]).parameters()]
        steps = optimizer(parameters)
        for _ in range(3):
            steps.zero_grad()
            output = second(first(x.to(devices[0])).to(devices[1]))
            nn.functional.cross_entropy(output, target.to(devices[1])).backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            steps.step()
        assert [parameter.grad.device for parameter in parameters] == [parameter.device for parameter in parameters]
        return [parameter.detach().cpu() for parameter in parameters]

    plain = train(*two_parts(), [torch.device('cpu')] * 2)
    with pretend_gpus(2) as gpus:
        spread = train(*two_parts(), gpus.devices)
    for one, other in zip(plain, spread):
        torch.testing.assert_close(one, other)


def test_moves_are_counted_and_gradients_travel_back(gpus: PretendGpus) -> None:
    x = torch.rand(5, 2, requires_grad=True)
    y = x.to(ONE) * 2
    (y.to(TWO) + torch.rand(5, 2).to(TWO)).sum().backward()
    assert list(map(str, gpus.moves)) == [
        'cpu -> cuda:0  5x2  40 bytes', 'cuda:0 -> cuda:1  5x2  40 bytes', 'cpu -> cuda:1  5x2  40 bytes',
        'cuda:1 -> cuda:0  5x2  40 bytes', 'cuda:0 -> cpu  5x2  40 bytes']
    assert torch.equal(x.grad, torch.full((5, 2), 2.0)) and x.grad.device.type == 'cpu'
    gpus.forget()
    assert gpus.moves == []


@pytest.mark.parametrize('write', [lambda there, x: there.copy_(x), lambda there, x: there.__setitem__(slice(0, 2), x)])
def test_writing_into_a_tensor_of_another_device_is_a_move(gpus: PretendGpus, write: Callable) -> None:
    x, there = torch.rand(2, 3, requires_grad=True), torch.zeros(2, 3, device=TWO)
    write(there, x)
    there.sum().backward()
    assert there.device == TWO and x.grad.device.type == 'cpu'
    assert [(move.source, move.destination) for move in gpus.moves] == [(x.device, TWO), (TWO, x.device)]


def test_a_gradient_begins_where_the_tensor_is(gpus: PretendGpus) -> None:
    y = torch.rand(2, 3, device=TWO, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match='expected device cuda:1 but got cpu'):
        y.backward(torch.ones(2, 3))
    y.backward(torch.ones(2, 3, device=TWO))


class Copy(torch.autograd.Function):
    """A move of the learner's own."""

    @staticmethod
    def forward(ctx, x, device):
        ctx.source = x.device
        return x.to(device)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.source), None


@pytest.mark.parametrize('backward', [
    lambda y, x: y.backward(), lambda y, x: torch.autograd.backward(y),
    lambda y, x: x.__setattr__('grad', *torch.autograd.grad(y, x))])
def test_hooks_and_functions_in_a_backward_see_gpus(gpus: PretendGpus, backward: Callable) -> None:
    seen, x = [], torch.rand(3, requires_grad=True)
    y = Copy.apply(x, TWO)
    y.register_hook(lambda gradient: seen.append(gradient.device))
    backward(y.sum(), x)
    assert seen == [TWO] and x.grad.device.type == 'cpu'


def test_outside_all_is_as_before() -> None:
    run_backward = torch.autograd._engine_run_backward
    with pytest.raises(KeyError), pretend_gpus(1) as gpus:
        kept = torch.ones(2, device='cuda:0', requires_grad=True)
        raise KeyError
    assert kept.device.type == 'cpu' and torch.autograd._engine_run_backward is run_backward
    (kept * 2).sum().backward()
    assert gpus.devices == [ONE] and kept.grad.tolist() == [2, 2]


def test_nothing_is_remembered_of_tensors_that_are_gone() -> None:
    with pretend_gpus(2) as gpus:
        layer = nn.Linear(3, 3).to(ONE)
        layer(torch.rand(2, 3, device=ONE)).sum().backward()
        layer.zero_grad()
        gc.collect()
        assert len(gpus._home) == 2 and {gpus.device_of(parameter) for parameter in layer.parameters()} == {ONE}


def test_bytes_on_a_device_are_those_that_live_there(gpus: PretendGpus) -> None:
    layer, x = nn.Linear(4, 2), torch.rand(3, 4)
    assert gpus.bytes_on(ONE) == 0
    layer.to(ONE)
    there = x.to(ONE)
    assert gpus.bytes_on(ONE) == 4 * (4 * 2 + 2 + 3 * 4) and gpus.bytes_on(TWO) == 0
    view = there[1:]
    assert gpus.bytes_on(ONE) == 4 * (4 * 2 + 2 + 3 * 4)
    layer.to('cpu')
    assert gpus.bytes_on(ONE) == 4 * 3 * 4
    del there, view
    assert gpus.bytes_on(ONE) == 0
