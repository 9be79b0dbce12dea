"""Skips in engines that have one part of a model on the device at a time: inside a part they work, to the bit, and
from one part to another they are refused."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewgpu.activations import train_in_segments
from fewgpu.device import Device, one_thread
from fewgpu.link import bytes_in
from fewgpu.microbatch import scatter
from fewgpu.offload import Offloaded
from fewgpu.skip import Load, Save
from fewgpu.spill import Job, Spilled, sharp, shards_that_fit
from tests.skips import SkipCase, skip_cases

Batch = tuple[torch.Tensor, torch.Tensor]


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def passed(case: SkipCase, edge: int) -> set[str]:
    """The names of the skips that go past a cut before layer `edge`."""
    before, after = ({name for _, name, _ in part if name} for part in (case.layers[:edge], case.layers[edge:]))
    return before & after


def edges(balance: Sequence[int]) -> list[int]:
    return [sum(balance[:k]) for k in range(1, len(balance))]


def cut_between(case: SkipCase, asked: Sequence[int]) -> list[int]:
    """A balance with those of the asked cuts that no skip passes."""
    kept = [0, *(edge for edge in edges(asked) if not passed(case, edge)), len(case.layers)]
    return [after - before for before, after in zip(kept, kept[1:])]


def batches(case: SkipCase, count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(case.seed)
    return [tuple(torch.randn(2, case.rows, 4, generator=generator, dtype=torch.float64)) for _ in range(count)]


def plainly(case: SkipCase, some: Sequence[Batch], chunks: int) -> tuple[dict, list[torch.Tensor]]:
    """The state and the losses of the plain model, micro-batch by micro-batch."""
    model, losses = case.model(), []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = sgd(trained) if trained else None
    with one_thread():
        for batch in some:
            parts = [nn.functional.mse_loss(model(x), y) * (len(x) / case.rows)
                     for x, y in zip(*(scatter(each, chunks) for each in batch))]
            for part in parts:
                part.backward() if part.requires_grad else None
            if optimizer:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(torch.stack(parts).detach().sum())
    return model.state_dict(), losses


def in_parts(model: nn.Sequential, balance: Sequence[int]) -> nn.Sequential:
    """A layer a part."""
    layers = iter(model)
    return nn.Sequential(*(nn.Sequential(*(next(layers) for _ in range(count))) for count in balance))


def spilled(case: SkipCase, balance: Sequence[int], **options) -> Spilled:
    return Spilled(case.model(), balance, device=Device(), loss_fn=nn.functional.mse_loss, optimizer=sgd, **options)


@given(skip_cases(), st.booleans(), st.booleans())
def test_inside_a_shard_they_work_to_the_bit(case: SkipCase, prefetch: bool, on_host: bool) -> None:
    model = spilled(case, cut_between(case, case.balance), prefetch=prefetch, inputs_on_host=on_host)
    state, losses = plainly(case, some := batches(case, 3), 1)
    assert [model.step(*batch).item() for batch in some] == [loss.item() for loss in losses]
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in state.items())


@given(skip_cases(), st.booleans(), st.integers(0, 3))
def test_inside_a_layer_of_an_offloaded_model_they_work_to_the_bit(case: SkipCase, recompute: bool, depth: int) -> None:
    model = Offloaded(in_parts(case.model(), cut_between(case, case.balance)), device=Device(), optimizer=sgd,
                      loss_fn=nn.functional.mse_loss, recompute=recompute, depth=depth)
    state, losses = plainly(case, some := batches(case, 3), case.chunks)
    assert [model.step(*batch, case.chunks).item() for batch in some] == [loss.item() for loss in losses]
    assert all(torch.equal(*pair) for pair in zip(state.values(), model.state_dict().values(), strict=True))
    plain = case.model()
    plain.load_state_dict(state)
    with torch.no_grad(), one_thread():
        outputs = torch.cat([plain(x) for x in scatter(some[0][0], case.chunks)])
    assert torch.equal(model.evaluate(some[0][0], case.chunks), outputs)


@settings(max_examples=20)
@given(st.lists(skip_cases(), min_size=2, max_size=3), st.integers(1, 2), st.booleans())
def test_models_that_share_devices_keep_theirs_apart(cases: list[SkipCase], devices: int, prefetch: bool) -> None:
    models = [spilled(case, cut_between(case, case.balance)) for case in cases]   # the names are the same: s0, s1, ..
    found = sharp([Job(model, batches(case, 2)) for model, case in zip(models, cases)],
                  [Device(index=d) for d in range(devices)], prefetch=prefetch)
    for case, model, losses in zip(cases, models, found.losses):
        state, expected = plainly(case, batches(case, 2), 1)
        assert [loss.item() for loss in losses] == [loss.item() for loss in expected]
        assert all(torch.equal(value, model.state_dict()[key]) for key, value in state.items())


@given(skip_cases())
def test_a_balance_is_refused_if_and_only_if_a_skip_passes_a_cut(case: SkipCase) -> None:
    crossing = set().union(*(passed(case, edge) for edge in edges(case.balance)))
    if not crossing:
        spilled(case, case.balance)
        return
    with pytest.raises(ValueError, match='put its Save and Load into one shard') as caught:
        spilled(case, case.balance)
    assert any(f'the skip {name!r} goes from shard' in str(caught.value) for name in crossing)


def no_gradient(model: nn.Sequential) -> None:
    train_in_segments(model, 6, torch.randn(4, 6), lambda y: y.square().mean(), Device())


@pytest.mark.parametrize('make, remedy', [
    (lambda model: Offloaded(model, optimizer=sgd, loss_fn=nn.functional.mse_loss, device=Device()),
     'from layer 1 to layer 4, .* one layer, an nn.Sequential, or use Pipeline'),
    (lambda model: Offloaded(model, optimizer=sgd, loss_fn=nn.functional.mse_loss, device=Device(), recompute=False),
     'from layer 1 to layer 4'),
    (lambda model: Spilled(model, [2, 4], loss_fn=nn.functional.mse_loss), 'from shard 0 to shard 1'),
    (no_gradient, 'from segment 1 to segment 4, .* fewer segments'),
])
def test_what_would_lose_a_gradient_is_refused_before_anything_has_changed(make: Callable, remedy: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Save('s'), nn.Linear(6, 6), nn.ReLU(), Load('s', 'add'), nn.Linear(6, 6))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"the skip 's' goes {remedy}"):
        make(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@given(skip_cases(), st.integers(1, 6))
def test_segments_with_skips_inside_give_the_plain_gradients(case: SkipCase, segments: int) -> None:
    model, plain = (in_parts(case.model(), cut_between(case, case.balance)) for _ in range(2))
    x, loss = batches(case, 1)[0][0], lambda outputs: outputs.sin().mean()
    if not any(parameter.requires_grad for parameter in plain[-1].parameters()):
        return   # nothing to be trained at the end
    train_in_segments(model, min(segments, len(model)), x.clone(), loss, Device())
    with one_thread():
        loss(plain(x)).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


@settings(max_examples=40)
@given(skip_cases(), st.integers(1_000, 20_000), st.sampled_from([0, 0.2]), st.booleans())
def test_a_pilot_run_never_cuts_between_the_ends_of_a_skip(case: SkipCase, limit: int, buffer: float, on_host: bool
                                                           ) -> None:
    model, (x, y) = case.model(), batches(case, 1)[0]
    try:
        balance = shards_that_fit(model, x, y, nn.functional.mse_loss, Device(memory_limit=limit), double_buffer=buffer,
                                  inputs_on_host=on_host)
    except ValueError as error:
        finest = cut_between(case, [1] * len(case.layers))
        assert 'by itself' in str(error) or 'by themselves' in str(error) and max(finest) > 1
        return
    assert sum(balance) == len(model) and not any(passed(case, edge) for edge in edges(balance))
    device = Device(memory_limit=limit)
    Spilled(model, balance, device=device, loss_fn=nn.functional.mse_loss, prefetch=buffer > 0,
            inputs_on_host=on_host).step(x, y)
    assert device.ledger.peak <= limit
    assert not buffer or all(2 * bytes_in([*part.parameters()]) <= buffer * limit for part in in_parts(model, balance))
