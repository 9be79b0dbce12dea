"""The networks of the workshop: each is an nn.Sequential and nothing else, to be cut between its layers."""

from __future__ import annotations

import re

from torch import nn

from fewgpu.models.gpt import gpt, next_token_loss
from fewgpu.models.resnet import depths, resnet
from fewgpu.models.unet import unet
from fewgpu.models.vgg import vgg16

__all__ = ['ARCHITECTURES', 'build', 'depths', 'gpt', 'next_token_loss', 'resnet', 'unet', 'vgg16']

ARCHITECTURES = ('resnet18', 'resnet50', 'resnet152', 'vgg16')


def build(arch: str, *, in_channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Build a network by its name: N x in_channels x 28 x 28 -> N x classes (logits).

    ``arch`` is one of ARCHITECTURES, or 'resnet' and any depth that ``resnet`` knows ('resnet56'), or
    'unet', which classifies pixels: N x classes x 28 x 28. Raises ValueError for other names, and for a depth that does
    not exist.
    """
    if arch == 'vgg16':
        return vgg16(in_channels=in_channels, classes=classes)
    if match := re.fullmatch(r'resnet(\d+)', arch):
        return resnet(int(match[1]), in_channels=in_channels, classes=classes)
    if arch == 'unet':
        return unet(depth=2, in_channels=in_channels, classes=classes)   # 28 can be halved twice
    raise ValueError(f"unknown arch {arch!r}; take one of {', '.join(ARCHITECTURES)}, or resnet of another depth, or "
                     f"unet")
