"""VGG-16 for 28 x 28 images, as a sequence of layers that can be cut anywhere.

Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition
(arXiv 1409.1556), table 1, configuration D. Published for 224 x 224 images, which its five max-pools
bring down to 7 x 7. Here only the first two are kept, 28 -> 14 -> 7, so that the published classifier,
512 x 7 x 7 -> 4096 -> 4096 -> classes, fits exactly. It holds nine weights of ten: 134 million
weights in all, where a sample has few activations. A ResNet-50 is the other way round.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

# Table 1, column D: the output channels of the 3x3 convolutions, group by group.
_GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_POOLED = 2  # a max-pool follows each of the first two groups
_HIDDEN = 4096


def vgg16(*, in_channels: int = 1, classes: int = 10) -> nn.Sequential:
    """VGG-16: N x in_channels x 28 x 28 -> N x classes (logits). Every convolution, ReLU or pool is a layer.

    Convolutions start He normal by the fan-in (arXiv 1502.01852, equation 10): with no batch norm to
    set the scale right, this carries the signal through 13 of them. (The paper started from the
    weights of a shallower network; by the fan-out, the loss does not move in the first 14 steps of
    64 rows.) The linear layers start normal with a standard deviation of 0.01, as in torchvision, so
    that the first logits are small; He's 25,088 inputs would let the loss start above 5. Biases are 0.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = in_channels
    for group, widths in enumerate(_GROUPS, start=1):
        for i, width in enumerate(widths, start=1):
            layers[f'conv{group}_{i}'] = nn.Conv2d(channels, width, 3, padding=1)
            layers[f'conv{group}_{i}_relu'] = nn.ReLU(inplace=True)
            channels = width
        if group <= _POOLED:
            layers[f'pool{group}'] = nn.MaxPool2d(2)
    layers['flatten'] = nn.Flatten()
    features = channels * 7 * 7
    for i in (1, 2):
        layers[f'linear{i}'] = nn.Linear(features, _HIDDEN)
        layers[f'linear{i}_relu'] = nn.ReLU(inplace=True)
        layers[f'linear{i}_dropout'] = nn.Dropout()
        features = _HIDDEN
    layers['linear3'] = nn.Linear(features, classes)
    for layer in layers.values():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(layers)
