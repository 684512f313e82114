"""Networks by name, for rows of a given shape: what run files and `winsor plan` can ask for."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from winsor.core.contract import ConfigurationError
from winsor.models import networks as small
from winsor.models.gpt import SmallGPT

Shape = tuple[int, ...]


def linear(shape: Shape, outputs: int, *, bias: bool = True, zeros: bool = False) -> nn.Module:
    """Return a linear model. With ``zeros`` every run starts at the same point."""
    model = small.mlp([_flat(shape), outputs], bias=bias)
    if zeros:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    return model


def mlp(
    shape: Shape, outputs: int, *, hidden: list[int] | None = None, bias: bool = True
) -> nn.Module:
    """Return linear layers of widths ``hidden`` with ReLU in between."""
    return small.mlp([_flat(shape), *([64] if hidden is None else hidden), outputs], bias=bias)


def two_layer_cnn(shape: Shape, outputs: int, *, groups: int = 4) -> nn.Module:
    """Return the baseline CNN, for images of 28 x 28."""
    if len(shape) != 3 or shape[1:] != (28, 28):
        raise ConfigurationError(
            "data.shape must be [channels, 28, 28] for the model two_layer_cnn. Got "
            f"{list(shape)} instead."
        )
    return small.two_layer_cnn(outputs, channels=shape[0], groups=groups or None)


def resnet9(shape: Shape, outputs: int, *, width: int = 16, group: int = 8) -> nn.Module:
    """Return a ResNet-9 with GroupNorm."""
    return small.resnet_gn(9, outputs, channels=_channels(shape), width=width, group=group)


def resnet20(shape: Shape, outputs: int, *, width: int = 16, group: int = 8) -> nn.Module:
    """Return a ResNet-20 with GroupNorm."""
    return small.resnet_gn(20, outputs, channels=_channels(shape), width=width, group=group)


def gpt(
    shape: Shape, outputs: int, *, layers: int = 2, heads: int = 2, width: int = 64
) -> nn.Module:
    """Return a small GPT over ``outputs`` tokens."""
    return SmallGPT(outputs, shape[0], layers=layers, heads=heads, width=width)


BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "two_layer_cnn": two_layer_cnn,
    "resnet9": resnet9,
    "resnet20": resnet20,
    "gpt": gpt,
}


def _flat(shape: Shape) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def _channels(shape: Shape) -> int:
    if len(shape) != 3:
        raise ConfigurationError(
            f"data.shape must be [channels, height, width] for a ResNet. Got {list(shape)} instead."
        )
    return shape[0]
