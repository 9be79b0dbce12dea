"""U-Net: an encoder that halves the image, a decoder that doubles it, and long skips from one to the other.

    level 0   image ─► conv conv ─ save ───────────────────────────► load ─► conv conv ─► 1x1 ─► classes
    level 1              pool ─► conv conv ─ save ────────► load ─► conv conv ─► up
    bottom                         pool ─────────► conv conv ─► up

Ronneberger, Fischer, Brox 2015 (arXiv 1505.04597, figure 1). As is usual today, convolutions are
padded, so that the classes have the image's size and skips need no cropping, and each is followed by
batch norm. The convolutions of all levels take about the same time (half the side, twice the
channels); the activations of a level take half the bytes of the level above.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import nn

from fewgpu.skip import Load, Save, SkipSequential


class Halve(nn.MaxPool2d):
    """A 2x2 max-pool. Raises ValueError for a side that is no even number: it would not double back."""

    def __init__(self, depth: int) -> None:
        super().__init__(2)
        self.depth = depth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-2] % 2 or x.shape[-1] % 2:
            raise ValueError(f'this U-Net halves an image {self.depth} times: its sides must be multiples of '
                             f'{2 ** self.depth} pixels, and one of them is none')
        return super().forward(x)


def unet(*, depth: int = 4, width: int = 64, in_channels: int = 1, classes: int = 2) -> SkipSequential:
    """N x in_channels x H x W -> N x classes x H x W (logits of every pixel); H, W multiples of 2**depth.

    `depth` is how often the image is halved, `width` the channels of level 0, which double from level to
    level; as published they are 4 and 64. Level k of the encoder saves its skip as 'level k'. Weights
    start as in the paper (section 3): normal, with a standard deviation of sqrt(2 / fan-in).

    The layers of the two halves mirror each other, the 1x1 convolution at the end apart, so that the
    cuts of `fewgpu.balance.cut_mirrored` leave both ends of each skip on the same device.

    Raises ValueError for a depth or width below 1.
    """
    if depth < 1 or width < 1:
        raise ValueError(f'a U-Net has at least one level and one channel, not depth={depth}, width={width}')
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = in_channels
    for k in range(depth):
        layers |= _convolutions(f'down{k}', channels, channels := width * 2 ** k)
        layers[f'save{k}'] = Save(f'level {k}')
        layers[f'pool{k}'] = Halve(depth)
    layers |= _convolutions('bottom', channels, channels := width * 2 ** depth)
    for k in reversed(range(depth)):
        layers[f'double{k}'] = nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
        layers[f'load{k}'] = Load(f'level {k}')
        layers |= _convolutions(f'up{k}', channels, channels := channels // 2)
    layers['classes'] = nn.Conv2d(channels, classes, 1)
    for layer in nn.ModuleList(layers.values()).modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
        elif isinstance(layer, nn.ConvTranspose2d):   # a pixel of its output sees one place of every channel
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_channels))
    return SkipSequential(layers)


def _convolutions(name: str, inputs: int, outputs: int) -> dict[str, nn.Module]:
    """Two layers, each a convolution with what belongs to it."""
    return {f'{name}_{i}': nn.Sequential(nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                                         nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
            for i, channels in ((1, inputs), (2, outputs))}

