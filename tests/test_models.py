"""The networks: sized as published, cut anywhere, trained. Counts are derived here from the papers' tables."""

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fewgpu.models import ARCHITECTURES, build, depths, resnet
from fewgpu.models.resnet import BasicBlock, Block, Bottleneck

# torchvision's documentation, "num_params": RGB images, 1,000 classes, and for ResNets a 7x7 stem.
PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg16": 138_357_544,
}
BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # arXiv 1512.03385, table 1
SIDES = (28, 14, 7, 4)  # of the images in the four stages
ALL_DEPTHS = depths(200)


def blocks(depth: int) -> tuple[int, ...]:
    """Blocks a stage: table 1 and its continuation."""
    return BASIC.get(depth) or ((3, 8, 36, 3) if depth == 152 else (3, 4, (depth - 32) // 3, 3))


def walk(depth: int) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Block by block: channels in, width, channels out, side in, side out, whether the shortcut projects."""
    channels, side = 64, 28
    for stage, count in enumerate(blocks(depth)):
        width = 64 * 2**stage
        for _ in range(count):
            out = width if depth in BASIC else 4 * width
            yield channels, width, out, side, SIDES[stage], side != SIDES[stage] or channels != out
            channels, side = out, SIDES[stage]


def resnet_parameters(depth: int, in_channels: int, classes: int) -> int:
    """Weights of the convolutions, two a channel for each batch norm, and the linear layer."""
    total = 9 * in_channels * 64 + 2 * 64
    for channels, width, out, *_, projects in walk(depth):
        if depth in BASIC:
            total += 9 * channels * width + 9 * width * out + 2 * (width + out)
        else:
            total += channels * width + 9 * width * width + width * out + 2 * (2 * width + out)
        total += projects * (channels * out + 2 * out)
    return total + (out + 1) * classes


def resnet_activations(depth: int) -> int:
    """Floats that the backward needs of one sample: what goes into each layer, none of it twice.

    A convolution needs its input and batch norm too (the convolution's output); a ReLU needs its
    output, which is the next layer's input.
    """
    total = 784 + 2 * 64 * 784  # the image; the stem's convolution, and its ReLU
    for _, width, out, side_in, side_out, projects in walk(depth):
        here, before = side_out**2, side_in**2
        # ReLUs and convolutions of width channels; a bottleneck's first pair has the size of its input.
        total += 2 * width * here if depth in BASIC else 2 * width * before + 2 * width * here
        total += (1 + projects) * out * here + out * here  # the last convolution, the projection; the block's ReLU
    return total + out  # the pool's output, into the linear layer


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small batches gain nothing from threads, and lose much where cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def on_meta(arch: str, **options: int) -> nn.Sequential:
    """The network with shapes but no memory."""
    with torch.device("meta"):
        return build(arch, **options)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps for the backward, beside the model's own; every storage once."""
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


@settings(max_examples=10)
@given(depth=st.sampled_from(ALL_DEPTHS), in_channels=st.integers(1, 4), classes=st.integers(1, 1000))
def test_a_resnet_has_the_parameters_of_its_table(depth: int, in_channels: int, classes: int) -> None:
    model = on_meta(f"resnet{depth}", in_channels=in_channels, classes=classes)
    assert count(model) == resnet_parameters(depth, in_channels, classes)


@pytest.mark.parametrize("arch", PUBLISHED)
def test_parameters_are_those_published_but_for_the_stem(arch: str) -> None:
    model = on_meta(arch, in_channels=3, classes=1000)
    stem = 0 if arch == "vgg16" else 3 * 64 * (7 * 7 - 3 * 3)
    assert count(model) == PUBLISHED[arch] - stem


@settings(max_examples=10)
@given(depth=st.sampled_from(ALL_DEPTHS))
def test_the_depth_counts_the_layers_on_the_main_path(depth: int) -> None:
    model = on_meta(f"resnet{depth}")
    branches = sum(isinstance(layer, nn.Conv2d) for block in model if isinstance(block, Block) for layer in block.branch)
    assert branches + len(["conv", "linear"]) == depth


@given(depth=st.integers(-5, 200))
def test_a_depth_is_built_or_refused_with_the_nearest_ones(depth: int) -> None:
    if depth in ALL_DEPTHS:
        assert len(on_meta(f"resnet{depth}")) == sum(blocks(depth)) + len(["conv", "bn", "relu", "pool", "flatten", "linear"])
        return
    below = [valid for valid in ALL_DEPTHS if valid < depth][-1:]
    above = [valid for valid in depths(300) if valid > depth][:1]
    with pytest.raises(ValueError, match=f"take {' or '.join(map(str, below + above))} "):
        resnet(depth)


def test_depths_are_the_published_ones_and_the_family_of_50_and_101() -> None:
    assert {18, 34, 50, 101, 152} <= set(ALL_DEPTHS)
    assert set(ALL_DEPTHS) - {18, 34} == {32 + 3 * k for k in range(1, 57)}
    assert depths(17) == [] and depths(18) == [18]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@settings(max_examples=4)
@given(rows=st.integers(1, 70), in_channels=st.integers(1, 4), classes=st.integers(1, 100))
def test_logits_are_one_row_a_sample_and_one_column_a_class(arch: str, rows: int, in_channels: int, classes: int) -> None:
    model = on_meta(arch, in_channels=in_channels, classes=classes)
    assert type(model) is nn.Sequential
    assert model(torch.zeros(rows, in_channels, 28, 28, device="meta")).shape == (rows, classes)


@pytest.mark.parametrize("arch", ["resnet18", "resnet50", "resnet152"])
def test_each_stage_of_a_resnet_halves_the_side_in_a_3x3_convolution(arch: str) -> None:
    x = torch.zeros(2, 1, 28, 28, device="meta")
    for name, layer in on_meta(arch).named_children():
        x = layer(x)
        if name.startswith("block"):
            stage = int(name[5]) - 1
            assert x.shape[1:] == (layer.expansion * 64 * 2**stage, SIDES[stage], SIDES[stage])
            strides = [(c.stride, c.kernel_size) for c in layer.branch if isinstance(c, nn.Conv2d) and c.stride != (1, 1)]
            assert strides == ([((2, 2), (3, 3))] if name[5:] in ("2_1", "3_1", "4_1") else [])


def test_vgg_keeps_two_pools_and_every_layer_stands_alone() -> None:
    model = on_meta("vgg16")
    kinds = [type(layer).__name__ for layer in model]
    assert [kinds.count(kind) for kind in ("Conv2d", "Linear", "MaxPool2d", "Dropout")] == [13, 3, 2, 2]
    assert all(not list(layer.children()) for layer in model)
    names = list(model._modules)
    features = model[: names.index("flatten")](torch.zeros(1, 1, 28, 28, device="meta"))
    assert features.shape == (1, 512, 7, 7)


def test_an_unknown_arch_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown arch 'alexnet'; take one of resnet18, resnet50, resnet152, vgg16"):
        build("alexnet")


@pytest.mark.parametrize("arch", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_activations_a_sample_are_those_counted_by_hand(arch: str) -> None:
    model = build(arch)
    one, three = (saved_bytes(model, torch.randn(rows, 1, 28, 28)) for rows in (1, 3))
    assert (three - one) / 2 == 4 * resnet_activations(int(arch[6:]))


def test_resnet50_keeps_19_MiB_a_sample_and_vgg_has_many_weights_and_few_activations() -> None:
    assert round(4 * resnet_activations(50) / 2**20) == 19
    vgg = 64 * 784 * 2 + 128 * 196 * 2 + 256 * 49 * 3 + 512 * 49 * 6 + 3 * 4096  # outputs of its ReLUs and dropouts
    assert count(on_meta("vgg16")) > 5 * count(on_meta("resnet50")) and 10 * vgg < resnet_activations(50)


@settings(max_examples=8)
@given(rows=st.integers(1, 3), cuts=st.sets(st.integers(0, 14)), training=st.booleans())
def test_a_cut_anywhere_changes_neither_the_output_nor_the_input(rows: int, cuts: set[int], training: bool) -> None:
    model = resnet(18).train(training)
    x = torch.randn(rows, 1, 28, 28)
    kept, bounds = x.clone(), [0, *sorted(cuts), len(model)]
    with torch.no_grad():
        whole = model(x)
        for start, end in zip(bounds, bounds[1:], strict=False):
            part = model[start:end](part if start else x)
    assert torch.equal(part, whole) and torch.equal(x, kept)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
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


HEAVY = [pytest.param(arch, marks=pytest.mark.slow) for arch in ("resnet50", "resnet152", "vgg16")]


@pytest.mark.parametrize("arch", ["resnet18", *HEAVY])
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
    assert not torch.equal(states[0]["conv.weight"], states[2]["conv.weight"])


@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy"])
def test_a_network_survives_a_round_trip(way: str) -> None:
    model = resnet(18)
    train(model, 1)  # so that its statistics are no longer those of a new one
    if way == "state_dict":
        other = resnet(18)
        other.load_state_dict(model.state_dict())
    else:
        other = pickle.loads(pickle.dumps(model)) if way == "pickle" else copy.deepcopy(model)
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(other.eval()(x), model.eval()(x))
