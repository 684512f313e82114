"""ResNet-18 for 32 x 32 images, with GroupNorm in place of batch statistics (Table 3, figure 2).

He et al. 2016: four stages of two blocks with 64, 128, 256 and 512 channels; for small images the
stem is one 3 x 3 convolution without pooling. 11.2 million weights.
"""

from __future__ import annotations

from torch import nn

from winsor.models.networks import Residual

CHANNELS_PER_GROUP = 16


def resnet18(classes: int = 10, *, channels: int = 3, width: int = 64) -> nn.Sequential:
    """``width`` is the number of channels of the first stage: 64 in the paper."""
    layers: list[nn.Module] = [*_conv(channels, width, 1), nn.ReLU()]
    inside = width
    for stage in range(4):
        outside = width * 2**stage
        for block in range(2):
            layers += _block(inside, outside, 2 if stage and not block else 1)
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def _conv(inside: int, outside: int, stride: int, kernel: int = 3) -> list[nn.Module]:
    convolution = nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.GroupNorm(max(1, outside // CHANNELS_PER_GROUP), outside)]


def _block(inside: int, outside: int, stride: int) -> list[nn.Module]:
    body = nn.Sequential(*_conv(inside, outside, stride), nn.ReLU(), *_conv(outside, outside, 1))
    same = inside == outside and stride == 1
    shortcut = None if same else nn.Sequential(*_conv(inside, outside, stride, kernel=1))
    return [Residual(body, shortcut), nn.ReLU()]
