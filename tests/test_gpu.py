"""On one GPU, which two or three stages share, a pipeline computes what the plain model computes.

`pytest -m gpu` runs the tests on a GPU; where torch sees none they are skipped. Most compute in
float64: where only the mathematics is the same, the results are, to many digits.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fewgpu import GPipe
from tests.gpu import GPU, exact, gradients, images, layers, on_gpu  # noqa: F401 (exact is a fixture)
from tests.pipes import CHECKPOINTS, Call

pytestmark = pytest.mark.gpu

checkpoints = pytest.mark.parametrize('checkpoint', CHECKPOINTS)


@checkpoints
@pytest.mark.parametrize('balance', [[4], [2, 2], [1, 2, 1], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize('chunks', [1, 4, 16])
def test_stages_that_share_a_gpu_equal_plain(chunks: int, balance: list, checkpoint: str) -> None:
    plain = layers().to(GPU)
    model = on_gpu(copy.deepcopy(plain), balance, chunks=chunks, checkpoint=checkpoint)
    x = images(device=GPU, requires_grad=True)
    torch.testing.assert_close(gradients(model, x), gradients(plain, x))
    assert model.devices == [GPU] * len(balance)


@checkpoints
def test_three_optimizer_steps_equal_plain(checkpoint: str) -> None:
    plain = layers().to(GPU)
    model = on_gpu(copy.deepcopy(plain), [2, 1, 1], chunks=3, checkpoint=checkpoint)
    batches = [(images(7), torch.randint(10, (7,), device=GPU)) for _ in range(3)]
    for module in (plain, model):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for x, target in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x.to(GPU)), target).backward()
            optimizer.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))


@pytest.mark.parametrize('devices', [['cuda', 'cuda'], [0, 0], [GPU, 'cuda:0'], ['cpu', 'cuda'],
                                     ['cuda', 'cpu']], ids=str)
def test_devices_are_named_in_any_way_and_may_be_a_gpu_and_the_cpu(devices: list) -> None:
    plain = layers()
    model = GPipe(copy.deepcopy(plain), [2, 2], devices=devices, chunks=3, checkpoint='always')
    x = images(requires_grad=True)
    assert model(x).device == model.devices[-1]
    torch.testing.assert_close(gradients(model, x), gradients(plain, x))
    assert 0 < model.timeline.makespan < 60


def test_an_input_on_the_cpu_gets_its_gradient_on_the_cpu() -> None:
    model, x = on_gpu(layers(), [2, 2], chunks=3), images(requires_grad=True)
    model(x).sum().backward()
    assert x.grad.device.type == 'cpu' and x.grad.abs().sum() > 0


@checkpoints
@pytest.mark.parametrize('deferred', [False, True])
def test_batch_norm_counts_every_micro_batch_once_or_the_mini_batch_if_deferred(
        deferred: bool, checkpoint: str) -> None:
    x, plain = images(8, device=GPU), nn.BatchNorm2d(3).double().to(GPU)
    model = on_gpu(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()).double(), [1, 1], chunks=4,
                   checkpoint=checkpoint, deferred_batch_norm=deferred)
    for part in (x,) if deferred else x.split(2):
        plain(part)
    model(x).sum().backward()
    torch.testing.assert_close(dict(model[0].state_dict()), dict(plain.state_dict()))


def test_a_recurrent_layer_equals_plain() -> None:
    plain = nn.Sequential(nn.LSTM(4, 5, 2, batch_first=True), Call(lambda states: states[0].sum(1)),
                          nn.Linear(5, 2)).to(GPU)
    model = on_gpu(copy.deepcopy(plain), [1, 2], chunks=3, checkpoint='always')
    x = torch.randn(6, 7, 4, device=GPU, requires_grad=True)
    torch.testing.assert_close(gradients(model, x), gradients(plain, x), rtol=1e-4, atol=1e-4)


@checkpoints
def test_dropout_has_the_same_masks_in_recompute_and_leaves_the_gpus_generator(
        checkpoint: str) -> None:
    model = on_gpu(nn.Sequential(*[nn.Dropout(0.1) for _ in range(6)]), [2, 2, 2], chunks=5,
                   checkpoint=checkpoint)
    x, results = torch.ones(100, 100, device=GPU, requires_grad=True), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        before = torch.cuda.get_rng_state(GPU)
        y = model(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(y.bool(), gradient.bool()) and not y.bool().all()
        assert torch.equal(torch.cuda.get_rng_state(GPU), before)
        results.append(y.detach())
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert not torch.equal(results[0][:20], results[0][20:40])   # micro-batches differ


@checkpoints
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_autocast_reaches_forward_and_recompute(dtype: torch.dtype, checkpoint: str) -> None:
    plain = layers(torch.float32).to(GPU)
    model = on_gpu(copy.deepcopy(plain), [2, 2], chunks=2, checkpoint=checkpoint)
    x = images(8, torch.float32, device=GPU, requires_grad=True)

    def run(call: Callable, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
        with torch.autocast('cuda', dtype):
            output = call(x)
        loss = output.float().square().mean()
        return [output.detach(), *torch.autograd.grad(loss, [*parameters, x])]

    ours = run(model, list(model.parameters()))
    theirs = run(lambda x: torch.cat([plain(part) for part in x.split(4)]), list(plain.parameters()))
    assert ours[0].dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_a_gradient_scaler_takes_the_same_steps_as_with_the_plain_model() -> None:
    plain, results = layers(torch.float32).to(GPU), []
    batches = [images(8, torch.float32, device=GPU) for _ in range(4)]
    for model in (plain, on_gpu(copy.deepcopy(plain), [2, 2], chunks=2, checkpoint='always')):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler('cuda', init_scale=2.0**8)
        for x in batches:
            optimizer.zero_grad()
            with torch.autocast('cuda', torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append((scaler.get_scale(), [p.detach().clone() for p in model.parameters()]))
    (scale, expected), (our_scale, found) = results
    assert our_scale == scale == 2.0**8   # no step was skipped
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize('inner', CHECKPOINTS)
@checkpoints
def test_a_pipeline_inside_a_pipeline_equals_plain(checkpoint: str, inner: str) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
                          nn.Linear(4, 2)).double().to(GPU)
    first, middle, last = copy.deepcopy(plain)
    model = on_gpu(nn.Sequential(first, on_gpu(middle, [1, 1], chunks=2, checkpoint=inner), last),
                   [1, 1, 1], chunks=3, checkpoint=checkpoint)
    x = torch.rand(12, 4, dtype=torch.float64, device=GPU, requires_grad=True)
    torch.testing.assert_close(gradients(model, x), gradients(plain, x))
