"""ResNets for 28 x 28 images, as a sequence of layers that can be cut anywhere.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (arXiv 1512.03385), table 1.
The published stem shrinks its image to a quarter of the side before the first block (7x7 convolution
and max-pool, both of stride 2); of 28 x 28 that would leave 7 x 7, and hardly any activations. The
stem here keeps the size. Channels, and in brackets those of a Bottleneck:

    conv, bn, relu              64        x 28 x 28    3x3, stride 1
    block1_1, block1_2 ...      64  (256) x 28 x 28
    block2_1, block2_2 ...     128  (512) x 14 x 14
    block3_1, block3_2 ...     256 (1024) x  7 x  7
    block4_1, block4_2 ...     512 (2048) x  4 x  4
    pool, flatten, linear      classes                 the mean of 4 x 4

A residual block is one layer of the sequence: a cut inside it would have to carry the shortcut too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

# Table 1: the blocks of each stage of the network. From 50 layers on, they are bottlenecks.
_PUBLISHED = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """A residual block: y = relu(f(x) + x) (equation 1); where sizes change, x is projected (equation 2).

    x: N x in_channels x H x W -> y: N x expansion * width x ceil(H / stride) x ceil(W / stride).
    The ReLUs and the sum work in place, but x is left as it was.

    The last batch norm of f starts with weight 0, so that a new block passes x on (Goyal et al.,
    arXiv 1706.02677, section 5.1). Started with 1, every block adds to the variance of its input, the
    features that reach the linear layer are large, and the loss of ResNet-50 climbs from 2.5 to 4 or
    more within ten steps of SGD (batch 64, eight micro-batches, learning rate 0.01); so it falls from
    the first steps on, also at 0.05. The price: in the very first step the other layers of f have a
    gradient of exactly 0. A test that compares gradients should take a step before.
    """

    expansion: int  # channels out, per channel of width
    layers: Callable[[int, int, int], list[nn.Module]]  # of f: channels in, width, stride

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = self.expansion * width
        self.branch = nn.Sequential(*self.layers(in_channels, width, stride))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(*_conv_bn(in_channels, out_channels, 1, stride))
        nn.init.zeros_(self.branch[-1].weight)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        y += self.shortcut(x)
        return self.relu(y)


class BasicBlock(Block):
    """Two 3x3 convolutions (figure 5, left); ResNet-18 and 34 are made of it."""

    expansion = 1

    @staticmethod
    def layers(in_channels: int, width: int, stride: int) -> list[nn.Module]:
        return [
            *_conv_bn(in_channels, width, 3, stride),
            nn.ReLU(inplace=True),
            *_conv_bn(width, width, 3),
        ]


class Bottleneck(Block):
    """Convolutions of 1x1, 3x3 and 1x1 (figure 5, right); ResNet-50 and deeper are made of it.

    The stride sits in the 3x3 convolution. The paper has it in the first 1x1, which then never sees
    three pixels of four; torchvision and NVIDIA moved it, found the result more accurate and call it
    ResNet v1.5 (docs.pytorch.org/vision, "ResNet"). The number of parameters is the same.
    """

    expansion = 4

    @staticmethod
    def layers(in_channels: int, width: int, stride: int) -> list[nn.Module]:
        return [
            *_conv_bn(in_channels, width, 1),
            nn.ReLU(inplace=True),
            *_conv_bn(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_conv_bn(width, Bottleneck.expansion * width, 1),
        ]


def resnet(depth: int, *, in_channels: int = 1, classes: int = 10) -> nn.Sequential:
    """A ResNet of ``depth`` layers: N x in_channels x 28 x 28 -> N x classes (logits).

    ``depth`` is one of the published 18, 34, 50, 101, 152, or 32 + 3k for any k >= 1: the family of
    ResNet-50 (k = 6) and 101 (k = 23), continued by bottlenecks in the third stage, [3, 4, k, 3].
    152 is the published [3, 8, 36, 3]; its four early bottlenecks more and late ones fewer hold more
    activations than those of its neighbours 149 and 155. ``depths`` lists what there is.

    Raises ValueError for any other depth, naming the nearest ones.
    """
    counts = _block_counts(depth)
    block = Bottleneck if depth > 34 else BasicBlock
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers['conv'], layers['bn'] = _conv_bn(in_channels, 64, 3)
    layers['relu'] = nn.ReLU(inplace=True)
    channels = 64
    for stage, (count, width) in enumerate(zip(counts, _WIDTHS, strict=True), start=1):
        for i in range(1, count + 1):
            stride = 2 if stage > 1 and i == 1 else 1
            layers[f'block{stage}_{i}'] = block(channels, width, stride)
            channels = block.expansion * width
    layers['pool'] = nn.AvgPool2d(4)
    layers['flatten'] = nn.Flatten()
    layers['linear'] = nn.Linear(channels, classes)
    return nn.Sequential(layers)


def depths(limit: int) -> list[int]:
    """Every depth that ``resnet`` builds, up to and including ``limit``, in ascending order."""
    return [depth for depth in range(18, limit + 1) if depth in _PUBLISHED or _is_continued(depth)]


def _is_continued(depth: int) -> bool:
    return depth > 32 and (depth - 32) % 3 == 0


def _block_counts(depth: int) -> tuple[int, ...]:
    """The number of blocks in each of the four stages of the network."""
    if depth in _PUBLISHED:
        return _PUBLISHED[depth]
    if _is_continued(depth):
        return (3, 4, (depth - 32) // 3, 3)
    below, above = depths(depth)[-1:], depths(max(depth, 18) + 16)
    nearest = [*below, next(valid for valid in above if valid > depth)]
    raise ValueError(
        f"there is no ResNet of {depth} layers; take {' or '.join(map(str, nearest))} "
        "(there are 18, 34, and 32 + 3k for any k from 1)"
    )


def _conv_bn(
    in_channels: int, out_channels: int, size: int, stride: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution that keeps the size but for its stride, and the batch norm after it.

    Weights are drawn as He et al. propose for ReLUs (arXiv 1502.01852, equation 14: normal, by the
    fan-out). Batch norm takes over a bias, so there is none.
    """
    conv = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode='fan_out', nonlinearity='relu')
    return conv, nn.BatchNorm2d(out_channels)
