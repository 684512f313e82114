"""Small models without batch statistics, used by the tests, the benchmarks and the examples.

Every layer here treats each row on its own, so every rule and engine of winsor accepts them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError


class Residual(nn.Module):
    """x -> F(x) + shortcut(x); the shortcut is the identity unless given."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's output to its input."""
        out: Tensor = self.body(x) + self.shortcut(x)
        return out


def mlp(sizes: Sequence[int], *, bias: bool = True) -> nn.Sequential:
    """Return a network of linear layers of the given sizes with ReLU in between, on flat rows."""
    if len(sizes) < 2:
        raise ConfigurationError(
            f"sizes must name at least an input and an output width. Got {list(sizes)!r} instead."
        )
    for place, size in enumerate(sizes):
        whole(f"sizes[{place}]", size)
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (d_in, d_out) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(d_in, d_out, bias=bias)]
        if i < len(sizes) - 2:
            layers += [nn.ReLU()]
    return nn.Sequential(*layers)


def two_layer_cnn(classes: int = 10, *, channels: int = 1, groups: int | None = 4) -> nn.Sequential:
    """Build the DP-SGD baseline CNN for 28 x 28 images; GroupNorm after convolutions if
    ``groups``."""

    def norm(width: int) -> list[nn.Module]:
        return [nn.GroupNorm(groups, width)] if groups else []

    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),  # 28 -> 14
        *norm(16),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),  # 14 -> 13
        nn.Conv2d(16, 32, 4, stride=2),  # 13 -> 5
        *norm(32),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),  # 5 -> 4
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


def resnet_gn(
    depth: int = 20, classes: int = 10, *, channels: int = 3, width: int = 16, group: int = 8
) -> nn.Sequential:
    """Build a residual network for small images with GroupNorm in place of batch statistics.

    ``depth`` 9 is the plain-then-residual stack that DAWNBench made popular; any 6 n + 2 (8, 14,
    20, 32, ...) is the CIFAR family of He et al. 2016. ``group`` is the number of channels that
    share a mean and a variance.
    """
    if depth == 9:
        return _resnet9(classes, channels, width, group)
    blocks, rest = divmod(depth - 2, 6)
    if blocks < 1 or rest:
        raise ConfigurationError(
            f"depth must be 9 or 6 n + 2 (8, 14, 20, ...). Got {depth!r} instead."
        )
    layers: list[nn.Module] = [*_conv(channels, width, 1, group), nn.ReLU()]
    inside = width
    for stage in range(3):
        outside = width * 2**stage
        for i in range(blocks):
            layers += _block(inside, outside, 2 if stage and i == 0 else 1, group)
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def _conv(inside: int, outside: int, stride: int, group: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(max(1, outside // group), outside),
    ]


def _block(inside: int, outside: int, stride: int, group: int) -> list[nn.Module]:
    body = nn.Sequential(
        *_conv(inside, outside, stride, group), nn.ReLU(), *_conv(outside, outside, 1, group)
    )
    same = inside == outside and stride == 1
    shortcut = None if same else nn.Conv2d(inside, outside, 1, stride=stride, bias=False)
    return [Residual(body, shortcut), nn.ReLU()]


def _resnet9(classes: int, channels: int, width: int, group: int) -> nn.Sequential:
    def conv(inside: int, outside: int) -> list[nn.Module]:
        return [*_conv(inside, outside, 1, group), nn.ReLU()]

    def residual(size: int) -> nn.Module:
        return Residual(nn.Sequential(*conv(size, size), *conv(size, size)))

    return nn.Sequential(
        *conv(channels, width),
        *conv(width, 2 * width),
        nn.MaxPool2d(2),
        residual(2 * width),
        *conv(2 * width, 4 * width),
        nn.MaxPool2d(2),
        *conv(4 * width, 8 * width),
        nn.MaxPool2d(2),
        residual(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )
