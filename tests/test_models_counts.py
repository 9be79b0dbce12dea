"""The networks have the parameters that were published, and the activations that one counts by hand."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fewgpu.models import build, depths

# torchvision's documentation, "num_params": RGB images, 1,000 classes, and for ResNets a 7x7 stem.
PUBLISHED = {
    'resnet18': 11_689_512,
    'resnet34': 21_797_672,
    'resnet50': 25_557_032,
    'resnet101': 44_549_160,
    'resnet152': 60_192_808,
    'vgg16': 138_357_544,
}
BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # arXiv 1512.03385, table 1
SIDES = (28, 14, 7, 4)  # of the images in the four stages


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


def on_meta(arch: str, **options: int) -> nn.Sequential:
    """The network with shapes but no memory."""
    with torch.device('meta'):
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
@given(depth=st.sampled_from(depths(200)), in_channels=st.integers(1, 4), classes=st.integers(1, 1000))
def test_a_resnet_has_the_parameters_of_its_table(depth: int, in_channels: int, classes: int) -> None:
    model = on_meta(f'resnet{depth}', in_channels=in_channels, classes=classes)
    assert count(model) == resnet_parameters(depth, in_channels, classes)


@pytest.mark.parametrize('arch', PUBLISHED)
def test_parameters_are_those_published_but_for_the_stem(arch: str) -> None:
    model = on_meta(arch, in_channels=3, classes=1000)
    stem = 0 if arch == 'vgg16' else 3 * 64 * (7 * 7 - 3 * 3)
    assert count(model) == PUBLISHED[arch] - stem


@pytest.mark.parametrize('arch', ['resnet18', 'resnet50'])
def test_activations_a_sample_are_those_counted_by_hand(arch: str) -> None:
    model = build(arch)
    one, three = (saved_bytes(model, torch.randn(rows, 1, 28, 28)) for rows in (1, 3))
    assert (three - one) / 2 == 4 * resnet_activations(int(arch[6:]))


def test_resnet50_keeps_19_MiB_a_sample_and_vgg_has_many_weights_and_few_activations() -> None:
    assert round(4 * resnet_activations(50) / 2**20) == 19
    vgg = 64 * 784 * 2 + 128 * 196 * 2 + 256 * 49 * 3 + 512 * 49 * 6 + 3 * 4096  # outputs of its ReLUs and dropouts
    assert count(on_meta('vgg16')) > 5 * count(on_meta('resnet50')) and 10 * vgg < resnet_activations(50)
