"""On a GPU: the caller's streams, copies, and errors; nothing is read before it is there.

`torch.cuda._sleep` keeps a stream busy, so that what does not wait for it computes with garbage.
"""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from fewgpu import GPipe, get_devices
from tests.gpu import GPU, exact, gradients, images, layers, on_gpu  # noqa: F401 (exact is a fixture)
from tests.pipes import BACKWARD, CHECKPOINTS, FORWARD, RECOMPUTE, Call, Failing, cut

pytestmark = pytest.mark.gpu

checkpoints = pytest.mark.parametrize('checkpoint', CHECKPOINTS)


def keep_busy() -> None:
    """The current stream, for some ten milliseconds."""
    torch.cuda._sleep(20_000_000)


@checkpoints
@pytest.mark.parametrize('backward_aside', [True, False])
def test_a_caller_on_a_stream_of_its_own_gets_the_same(backward_aside: bool, checkpoint: str) -> None:
    """The step waits for what is enqueued before it, and what comes after waits for the gradients,
    also if the backward is called on another stream than the forward."""
    plain = layers().to(GPU)
    model = on_gpu(copy.deepcopy(plain), [2, 2], chunks=4, checkpoint=checkpoint)
    base = images(device=GPU)
    expected = gradients(plain, (base * 3).requires_grad_())
    main, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    for _ in range(3):
        model.zero_grad()
        aside.wait_stream(main)
        with torch.cuda.stream(aside):
            keep_busy()
            x = (base * 3).requires_grad_()
            output = model(x)
            loss = output.square().sum()
            keep_busy()
        main.wait_stream(aside)
        with torch.cuda.stream(aside if backward_aside else main):
            loss.backward()
            found = [t.detach().clone() for t in (output, *(p.grad for p in model.parameters()), x.grad)]
        main.wait_stream(aside)
        torch.testing.assert_close([tensor.cpu() for tensor in found], expected)


def test_the_caller_stays_on_its_stream_and_device() -> None:
    model, aside = on_gpu(layers(), [2, 2], chunks=2), torch.cuda.Stream()
    with torch.cuda.stream(aside):
        model(images()).sum().backward()
        assert torch.cuda.current_stream() == aside
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_device() == GPU.index


def test_a_pinned_input_that_is_copied_without_blocking_is_waited_for() -> None:
    plain, x = layers(), images(64)
    model, expected = on_gpu(copy.deepcopy(plain), [2, 2], chunks=4), plain(x).detach()
    keep_busy()
    output = model(x.pin_memory().to(GPU, non_blocking=True))
    torch.testing.assert_close(output.detach().cpu(), expected)


@pytest.mark.parametrize('pinned', [True, False])
def test_an_input_on_the_host_may_be_overwritten_after_the_forward(pinned: bool) -> None:
    """As a data loader with a buffer of its own does."""
    plain, x = layers(), images(64)
    model, expected = on_gpu(copy.deepcopy(plain), [2, 2], chunks=4), plain(x).detach()
    host = x.pin_memory() if pinned else x.clone()
    keep_busy()
    output = model(host)
    host.zero_()
    torch.testing.assert_close(output.detach().cpu(), expected)


@checkpoints
@pytest.mark.parametrize('when', [FORWARD, RECOMPUTE, BACKWARD])
def test_an_error_names_its_place_and_the_next_step_works(when: str, checkpoint: str) -> None:
    failing = Failing()
    model = cut(nn.Linear(4, 4), failing, nn.Linear(4, 4), devices=get_devices(3, kind='cuda'),
                chunks=3, checkpoint=checkpoint)
    failing.fail(when, 0, ArithmeticError('wrong'))
    if when != RECOMPUTE or checkpoint != 'never':
        with pytest.raises(ArithmeticError, match='wrong') as caught:
            model(torch.rand(6, 4)).sum().backward()
        assert caught.value.__notes__[0].startswith(f'in stage 1 on GPU 0, {when} of micro-batch')
    failing.recover()
    model.zero_grad()
    model(torch.rand(6, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Around(nn.Module):
    """A model under torch.utils.checkpoint."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_checkpoint(self.model, x, use_reentrant=False)


def test_torch_checkpoint_round_a_pipeline_equals_plain() -> None:
    model, x = on_gpu(layers(), [2, 2], chunks=2), images(device=GPU, requires_grad=True)
    torch.testing.assert_close(gradients(Around(model), x), gradients(model, x))


def test_reentrant_torch_checkpoint_is_refused_and_does_not_hang() -> None:
    """It calls backward in the one thread in which torch runs the backwards of a GPU; the stages
    would wait for that thread, and it for them."""
    model, x = on_gpu(layers(), [2, 2], chunks=2), images(device=GPU, requires_grad=True)
    errors: list[BaseException] = []

    def reentrant() -> None:
        try:
            torch_checkpoint(model, x, use_reentrant=True).sum().backward()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=reentrant, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and 'use_reentrant=False' in str(errors[0])
    model(x).sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')
@checkpoints
def test_what_travels_between_gpus_is_there_when_it_is_used(checkpoint: str) -> None:
    def late(x: torch.Tensor) -> torch.Tensor:
        keep_busy()
        return x * 1

    plain = layers().to(GPU)
    first, second, third, last = copy.deepcopy(plain)
    stages = nn.Sequential(first, nn.Sequential(second, Call(late)), third,
                           nn.Sequential(last, Call(late)))
    model = GPipe(stages, [2, 2], devices=[0, 1], chunks=4, checkpoint=checkpoint)
    x = images(device=GPU, requires_grad=True)
    torch.testing.assert_close(gradients(model, x), gradients(plain, x))
