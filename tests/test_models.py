"""The networks: shaped as published, cut anywhere, trained."""

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from fewgpu.models import ARCHITECTURES, build, depths, resnet
from fewgpu.models.resnet import BasicBlock, Block, Bottleneck

SIDES = (28, 14, 7, 4)  # of the images in the four stages
ALL_DEPTHS = depths(200)


@pytest.fixture(autouse=True, scope='module')
def one_thread() -> Iterator[None]:
    """Small batches gain nothing from threads, and lose much where cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def on_meta(arch: str, **options: int) -> nn.Sequential:
    """The network with shapes but no memory."""
    with torch.device('meta'):
        return build(arch, **options)


@settings(max_examples=10)
@given(depth=st.sampled_from(ALL_DEPTHS))
def test_the_depth_counts_the_layers_on_the_main_path(depth: int) -> None:
    model = on_meta(f'resnet{depth}')
    branches = [layer for block in model if isinstance(block, Block) for layer in block.branch]
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in branches)
    assert convolutions + len(['conv', 'linear']) == depth


@given(depth=st.integers(-5, 200))
def test_a_depth_is_built_or_refused_with_the_nearest_ones(depth: int) -> None:
    if depth in ALL_DEPTHS:
        names = [name for name, _ in on_meta(f'resnet{depth}').named_children()]
        assert names[:3] == ['conv', 'bn', 'relu'] and names[-3:] == ['pool', 'flatten', 'linear']
        assert all(name.startswith('block') for name in names[3:-3])
        return
    below = [valid for valid in ALL_DEPTHS if valid < depth][-1:]
    above = [valid for valid in depths(300) if valid > depth][:1]
    with pytest.raises(ValueError, match=f"take {' or '.join(map(str, below + above))} "):
        resnet(depth)


def test_depths_are_the_published_ones_and_the_family_of_50_and_101() -> None:
    assert {18, 34, 50, 101, 152} <= set(ALL_DEPTHS)
    assert set(ALL_DEPTHS) - {18, 34} == {32 + 3 * k for k in range(1, 57)}
    assert depths(17) == [] and depths(18) == [18]


@pytest.mark.parametrize('arch', ARCHITECTURES)
@settings(max_examples=4)
@given(rows=st.integers(1, 70), in_channels=st.integers(1, 4), classes=st.integers(1, 100))
def test_logits_are_one_row_a_sample_and_one_column_a_class(
    arch: str, rows: int, in_channels: int, classes: int
) -> None:
    model = on_meta(arch, in_channels=in_channels, classes=classes)
    assert type(model) is nn.Sequential
    assert model(torch.zeros(rows, in_channels, 28, 28, device='meta')).shape == (rows, classes)


@pytest.mark.parametrize('arch', ['resnet18', 'resnet50', 'resnet152'])
def test_each_stage_of_a_resnet_halves_the_side_in_a_3x3_convolution(arch: str) -> None:
    x = torch.zeros(2, 1, 28, 28, device='meta')
    for name, layer in on_meta(arch).named_children():
        x = layer(x)
        if name.startswith('block'):
            stage = int(name[5]) - 1
            assert x.shape[1:] == (layer.expansion * 64 * 2**stage, SIDES[stage], SIDES[stage])
            convolutions = [part for part in layer.branch if isinstance(part, nn.Conv2d)]
            strided = [conv.kernel_size for conv in convolutions if conv.stride == (2, 2)]
            assert strided == ([(3, 3)] if name[5:] in ('2_1', '3_1', '4_1') else [])


def test_vgg_keeps_two_pools_and_every_layer_stands_alone() -> None:
    model = on_meta('vgg16')
    kinds = [type(layer).__name__ for layer in model]
    assert [kinds.count(kind) for kind in ('Conv2d', 'Linear', 'MaxPool2d', 'Dropout')] == [13, 3, 2, 2]
    assert all(not list(layer.children()) for layer in model)
    names = list(model._modules)
    features = model[: names.index('flatten')](torch.zeros(1, 1, 28, 28, device='meta'))
    assert features.shape == (1, 512, 7, 7)


def test_an_unknown_arch_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown arch 'alexnet'; take one of resnet18, resnet50, resnet152, vgg16"):
        build('alexnet')


@settings(max_examples=8)
@given(rows=st.integers(1, 3), cuts=st.sets(st.integers(0, 14)), training=st.booleans())
def test_a_cut_anywhere_changes_neither_the_output_nor_the_input(rows: int, cuts: set[int], training: bool) -> None:
    model = resnet(18).train(training)
    x = torch.randn(rows, 1, 28, 28)
    kept, bounds, part = x.clone(), [0, *sorted(cuts), len(model)], x
    with torch.no_grad():
        whole = model(x)
        for start, end in zip(bounds, bounds[1:], strict=False):
            part = model[start:end](part)
    assert torch.equal(part, whole) and torch.equal(x, kept)


@pytest.mark.parametrize('block', [BasicBlock, Bottleneck])
@given(channels=st.sampled_from([4, 8, 16]), width=st.sampled_from([2, 4, 8]), stride=st.integers(1, 2))
def test_a_new_block_passes_its_input_on_and_leaves_it_as_it_was(
    block: type[Block], channels: int, width: int, stride: int
) -> None:
    layer, x = block(channels, width, stride), torch.randn(2, channels, 5, 5)
    kept = x.clone()
    y = layer(x)
    assert torch.equal(y, layer.shortcut(x).relu()) and torch.equal(x, kept)
    assert y.shape == (2, block.expansion * width, -(-5 // stride), -(-5 // stride))


def train(model: nn.Sequential, steps: int) -> list[float]:
    """Losses of SGD on the same four rows, step by step, with no dropout."""
    for layer in model:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    x, y = torch.randn(4, 1, 28, 28), torch.arange(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


HEAVY = [pytest.param(arch, marks=pytest.mark.slow) for arch in ('resnet152', 'vgg16')]


@pytest.mark.parametrize('arch', ['resnet18', 'resnet50', *HEAVY])
def test_a_step_lowers_the_loss_and_then_every_parameter_has_a_gradient(arch: str) -> None:
    model = build(arch)
    losses = train(model, 2)  # at the first step the branches of new blocks still multiply by 0
    assert losses[1] < losses[0]
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_a_seed_settles_the_weights() -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(resnet(18).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]['conv.weight'], states[2]['conv.weight'])


@pytest.mark.parametrize('way', ['state_dict', 'pickle', 'deepcopy'])
def test_a_network_survives_a_round_trip(way: str) -> None:
    model = resnet(18)
    train(model, 1)  # so that its statistics are no longer those of a new one
    if way == 'state_dict':
        other = resnet(18)
        other.load_state_dict(model.state_dict())
    else:
        other = pickle.loads(pickle.dumps(model)) if way == 'pickle' else copy.deepcopy(model)
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(other.eval()(x), model.eval()(x))
