"""The U-Net: its sizes, and that it trains in any placement as it does on one device."""

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fewgpu import GPipe, ModelParallel, Pipeline
from fewgpu.balance import balance_by_size, cut_mirrored
from fewgpu.balance.profile import profile, weigh
from fewgpu.device import Device, one_thread
from fewgpu.models import build, unet
from fewgpu.skip import SkipSequential
from fewgpu.skip_routes import routes, verify_skips

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
cross_entropy = nn.functional.cross_entropy


def batch(rows: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(rows, 1, side, side, dtype=torch.float64), torch.randint(2, (rows, side, side))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters()]


@given(SHAPES)
def test_parameters_are_as_many_as_the_figure_of_the_paper_says(shape: tuple) -> None:
    depth, width, channels, classes = shape
    widths = [width * 2 ** k for k in range(depth + 1)]

    def pair(inputs: int, outputs: int) -> int:   # two 3x3 convolutions, and a scale and shift after each
        return 9 * inputs * outputs + 9 * outputs ** 2 + 4 * outputs
    expected = (pair(channels, width) + sum(pair(a, b) for a, b in zip(widths, widths[1:]))
                + sum(4 * b * a + a + pair(2 * a, a) for a, b in zip(widths, widths[1:]))
                + classes * (width + 1))
    model = unet(depth=depth, width=width, in_channels=channels, classes=classes)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert len(model) == 8 * depth + 3


@settings(max_examples=6)
@given(SHAPES, st.integers(1, 2), st.integers(1, 3), st.integers(1, 3))
def test_every_pixel_gets_its_classes(shape, rows, high, wide) -> None:
    depth, width, channels, classes = shape
    model = unet(depth=depth, width=width, in_channels=channels, classes=classes).eval()
    image = torch.rand(rows, channels, high * 2 ** depth, wide * 2 ** depth)
    assert model(image).shape == (rows, classes, *image.shape[2:])


@given(st.integers(1, 4), st.integers(1, 60), st.integers(1, 60))
def test_a_size_that_cannot_be_halved_is_refused_in_a_sentence(depth: int, high: int, wide: int) -> None:
    model = unet(depth=depth, width=1).eval()
    if high % 2 ** depth or wide % 2 ** depth:
        with pytest.raises(ValueError, match=f'multiples of {2 ** depth} pixels'):
            model(torch.rand(1, 1, high, wide))
    else:
        model(torch.rand(1, 1, high, wide))


@pytest.mark.parametrize('sizes', [{'depth': 0}, {'width': 0}])
def test_a_net_without_levels_or_channels_is_refused(sizes: dict) -> None:
    with pytest.raises(ValueError, match='at least one level and one channel'):
        unet(**sizes)


def test_it_has_one_skip_a_level_from_the_encoder_to_its_mirror_image_in_the_decoder() -> None:
    model = unet(depth=3, width=2)
    assert [(name, loads) for name, _, loads in verify_skips(model)] == [
        (f'level {k}', [len(model) - 2 - save]) for k, (_, save, loads) in enumerate(verify_skips(model))]
    assert isinstance(model, SkipSequential)
    assert build('unet')(torch.rand(1, 1, 28, 28)).shape == (1, 10, 28, 28)


@settings(max_examples=12)
@given(st.integers(1, 3), st.data())
def test_mirrored_cuts_keep_every_skip_on_its_device(depth: int, data) -> None:
    model = unet(depth=depth, width=2)
    devices = data.draw(st.integers(1, 4))
    costs = data.draw(st.lists(st.integers(1, 9), min_size=len(model), max_size=len(model)))
    balance = cut_mirrored(costs, devices)
    assert all(skip.source + skip.stage == 2 * devices - 1 for skip in routes(model, balance))


@settings(max_examples=6)
@given(st.integers(1, 2), st.data(), st.sampled_from(['straight', 'through']),
       st.sampled_from(['always', 'except_last', 'never']))
def test_it_trains_in_every_placement_as_on_one_device(depth: int, data, way: str, checkpoint: str) -> None:
    """One micro-batch: batch norm sees the same rows."""
    model = unet(depth=depth, width=2).double()
    x, y = batch(2, 8)
    plain = copy.deepcopy(model)
    with one_thread():
        loss = cross_entropy(plain(x), y)
        loss.backward()
    devices = data.draw(st.integers(2, 4))
    balance = balance_by_size(devices, model, x)
    gpipe = GPipe(copy.deepcopy(model), balance, chunks=1, checkpoint=checkpoint, skips=way,
                  devices=['cpu'] * devices)
    naive = ModelParallel(copy.deepcopy(model), balance, skips=way, devices=['cpu'] * devices)
    for module in (gpipe, naive):
        cross_entropy(module(x), y).backward()
        assert all(map(torch.equal, gradients(module), gradients(plain)))
        assert all(map(torch.equal, module.buffers(), plain.buffers()))
    mirrored = cut_mirrored([cost.saved_bytes for cost in weigh(model, x)], devices)
    aware = Pipeline(copy.deepcopy(model), mirrored, schedule='v-shape', loss_fn=cross_entropy,
                     checkpoint=checkpoint, skips=way, devices=['cpu'] * devices)
    torch.testing.assert_close(aware.step(x, y), loss.detach())
    assert all(map(torch.equal, gradients(aware), gradients(plain)))
    assert [*aware.state_dict()] == [*plain.state_dict()] == [*gpipe.state_dict()]


def test_saved_bytes_of_the_layers_add_up_to_the_models() -> None:
    model, kept = unet(depth=2, width=2).train(), {}
    x = torch.rand(2, 1, 16, 16)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)   # holds the graph, so that no address is used twice
    assert output.requires_grad
    assert sum(cost.saved_bytes for cost in profile(model, x, timeout=0)) == sum(kept.values())


def test_a_step_that_runs_out_of_memory_leaves_none_of_it_in_use() -> None:
    x, y = (part.float() if part.is_floating_point() else part for part in batch(1, 64))
    model = unet(depth=2, width=4)
    device = Device(memory_limit=400_000)
    with device.active(), pytest.raises(torch.OutOfMemoryError):
        cross_entropy(model(x), y).backward()
    assert device.ledger.allocated == 0
    limits = [Device(memory_limit=400_000, index=j) for j in range(2)]
    pipeline = ModelParallel(model, [9, 10], devices=limits)
    with pytest.raises(torch.OutOfMemoryError):
        cross_entropy(pipeline(x), y).backward()
    done = [device.ledger.allocated - device.ledger.parameters for device in limits]
    assert done == [0, 0]
