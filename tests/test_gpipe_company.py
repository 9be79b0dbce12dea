"""A pipeline among others: threads, other pipelines, a pipeline inside, DDP, checkpoint, autograd.grad.

Each either equals the plain model or is refused with what to do; none is silently wrong.
"""

import copy
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from fewgpu import GPipe, get_devices, launch
from tests.pipes import CHECKPOINTS, Call, cut, mlp

checkpoints = st.sampled_from(CHECKPOINTS)


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Of the parameters, then of x."""
    return list(torch.autograd.grad(model(x).square().sum(), [*model.parameters(), x]))


def double(rows: int = 6, width: int = 4) -> torch.Tensor:
    return torch.rand(rows, width, dtype=torch.float64, requires_grad=True)


def at_once(*jobs: Callable[[], None]) -> list[BaseException]:
    """Run the jobs in a thread each; what went wrong, or hangs."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return errors + [TimeoutError(t.name) for t in threads if t.is_alive()]


@given(chunks=st.integers(1, 4), checkpoint=checkpoints)
def test_gradients_asked_of_autograd_equal_plain_and_touch_no_grad(chunks: int, checkpoint: str) -> None:
    model, x = cut(*mlp(), chunks=chunks, checkpoint=checkpoint), double()
    torch.testing.assert_close(gradients(model, x), gradients(nn.Sequential(*model), x))
    assert all(leaf.grad is None for leaf in [*model.parameters(), x])


def test_gradients_asked_of_some_parameters_only_are_those() -> None:
    model, x = cut(*mlp(), chunks=3), double()
    (found,) = torch.autograd.grad(model(x).square().sum(), [model[0].weight])
    torch.testing.assert_close(found, gradients(nn.Sequential(*model), x)[0])
    model(x).square().sum().backward(inputs=[model[2].bias])
    assert [p.grad is None for p in model.parameters()] == [True, True, True, False]


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_hooks_of_a_parameter_run_once_with_the_whole_gradient(checkpoint: str) -> None:
    model, x, seen = cut(*mlp(), chunks=3, checkpoint=checkpoint), double(), []
    model[0].weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    model(x).square().sum().backward()
    expected = gradients(nn.Sequential(*copy.deepcopy(model)), x)[0]
    torch.testing.assert_close(seen, [expected, expected])


def test_parameters_that_are_swapped_for_a_call_get_the_gradients() -> None:
    model, x = cut(*mlp(), chunks=3, checkpoint='always'), double()
    leaves = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}

    def through(module: nn.Module) -> tuple[torch.Tensor, ...]:
        twice = {name: 2 * leaf for name, leaf in leaves.items()}
        output = torch.func.functional_call(module, twice, (x,))
        return torch.autograd.grad(output.square().sum(), list(leaves.values()))

    torch.testing.assert_close(through(model), through(nn.Sequential(*model)))


def test_threads_that_share_a_model_get_their_own_results() -> None:
    """Their parameters are listed before: while a step runs, stand-ins are in their place."""
    model = cut(*mlp(), chunks=3)
    parameters, inputs = list(model.parameters()), [double() for _ in range(3)]
    expected = [gradients(nn.Sequential(*model), x) for x in inputs]

    def caller(i: int) -> Callable[[], None]:
        def ten_steps() -> None:
            for _ in range(10):
                loss = model(inputs[i]).square().sum()
                found = torch.autograd.grad(loss, [*parameters, inputs[i]])
                torch.testing.assert_close(list(found), expected[i])
        return ten_steps

    assert at_once(*map(caller, range(3))) == []


def test_models_that_share_devices_in_any_order_run_at_once() -> None:
    devices = get_devices(3, kind='cpu')
    orders = [devices, devices[::-1], [devices[1], devices[2], devices[0]]]
    models = [cut(*mlp(), devices=order, chunks=4) for order in orders]
    assert at_once(*[lambda model=model: [model(double()).sum().backward() for _ in range(10)]
                     for model in models]) == []


@settings(max_examples=15)
@given(outer=checkpoints, inner=checkpoints, chunks=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_a_pipeline_inside_a_pipeline_equals_plain(outer: str, inner: str, chunks: tuple) -> None:
    def inside(inner_class: Callable) -> list[nn.Module]:
        return [nn.Linear(4, 4).double(), inner_class(*mlp()), nn.Linear(4, 4).double()]

    model = cut(*inside(lambda *layers: cut(*layers, chunks=chunks[1], checkpoint=inner)),
                chunks=chunks[0], checkpoint=outer)
    plain, x = nn.Sequential(*inside(nn.Sequential)), double()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(gradients(model, x), gradients(plain, x))


@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_layers_of_an_inner_pipeline_count_and_draw_once_a_forward(checkpoint: str) -> None:
    """Though the outer one recomputes it: statistics once, dropout with the same masks."""
    def build(outer: str) -> GPipe:
        torch.manual_seed(1)
        inner = cut(nn.BatchNorm1d(4), nn.Dropout(), chunks=2)
        return cut(nn.Linear(4, 4), inner, nn.Linear(4, 4), chunks=2, checkpoint=outer)

    models, x = [build(checkpoint), build('never')], torch.rand(8, 4)
    for model in models:
        torch.manual_seed(2)
        model(x).square().sum().backward()
    assert models[0][1][0].num_batches_tracked == 4
    for mine, theirs in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(dict(models[0].named_buffers()), dict(models[1].named_buffers()))


def test_an_inner_pipeline_on_a_device_of_the_outer_is_refused_and_does_not_hang() -> None:
    devices = get_devices(3, kind='cpu')
    inner = cut(nn.Linear(2, 2), nn.Linear(2, 2), devices=devices[:2])
    with pytest.raises(RuntimeError, match='needs devices of its own'):
        cut(nn.Linear(2, 2), inner, nn.Linear(2, 2), devices=devices)(torch.rand(4, 2))
    assert inner(torch.rand(4, 2)).shape == (4, 2)


@pytest.mark.parametrize('reentrant', [True, False])
@pytest.mark.parametrize('checkpoint', CHECKPOINTS)
def test_a_pipeline_under_torch_checkpoint_gives_the_same_gradients(
        checkpoint: str, reentrant: bool) -> None:
    layers = [nn.Linear(4, 4).double(), nn.Dropout(), nn.Linear(4, 4).double()]
    model, x = cut(*layers, chunks=3, checkpoint=checkpoint), double()
    results = []
    for call in (lambda: model(x), lambda: torch_checkpoint(model, x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        call().square().sum().backward()
        results.append([leaf.grad.clone() for leaf in [*model.parameters(), x]])
        model.zero_grad()
        x.grad = None
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_layer_that_brings_its_own_leaves_trains_in_a_frozen_model() -> None:
    outside = torch.ones(4, dtype=torch.float64, requires_grad=True)
    model = cut(*mlp(), Call(lambda x: x * outside), chunks=2).requires_grad_(False)
    output = model(double().detach())
    output.sum().backward()
    assert output.requires_grad and outside.grad is not None


OPTIONS = [{}, {'find_unused_parameters': True}, {'static_graph': True}, {'bucket_cap_mb': 1e-4}]


def replica() -> int:
    """On one of two ranks: how many gradients of pipelines were equal to the plain model's."""
    torch.manual_seed(torch.distributed.get_rank() + 1)
    batches, equal = [double().detach() for _ in range(3)], 0
    for options in OPTIONS:
        expected = replicated_gradients(None, batches, options)
        for checkpoint in ('never', 'always'):
            for found, wanted in zip(replicated_gradients(checkpoint, batches, options), expected):
                torch.testing.assert_close(found, wanted)
                equal += 1
    return equal


def replicated_gradients(checkpoint: str | None, batches: list, options: dict) -> list[torch.Tensor]:
    """After each of several backwards, of the plain model (None) or a pipeline. They add up."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = mlp()
    model = DistributedDataParallel(nn.Sequential(*layers) if checkpoint is None else cut(
        *layers, chunks=3, checkpoint=checkpoint), **options)
    found = []
    for x in batches:
        model(x).square().sum().backward()
        found += [parameter.grad.clone() for parameter in model.parameters()]
    with model.no_sync():
        model(batches[0]).square().sum().backward()
    model(batches[1]).square().sum().backward()
    return found + [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch without torch.distributed')
def test_replicas_of_a_pipeline_have_the_gradients_of_replicas_of_the_plain_model() -> None:
    """Each gradient is reduced once, also where the forward is recomputed."""
    gradients_compared = len(OPTIONS) * 2 * 4 * 4   # options, modes, backwards, parameters
    assert launch(replica) == [gradients_compared] * 2


def test_two_models_of_the_same_layers_take_turns() -> None:
    """Their stages put shadows in the place of the same parameters."""
    layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    parameters = list(layers.parameters())
    models = [GPipe(layers, [2, 1], devices=['cpu'] * 2, chunks=7) for _ in range(2)]

    def work(model: GPipe) -> None:
        for _ in range(30):
            model(torch.rand(7, 6)).sum().backward()

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*map(id, layers.parameters())] == [*map(id, parameters)]
    assert all(parameter.grad is not None for parameter in parameters)
