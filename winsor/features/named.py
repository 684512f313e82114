"""Features by name: what the [features] table of a configuration may say.

none                 pixels stay pixels
scattering           `scattering.py`; needs kymatio
oriented_gradients   `oriented.py`
efficientnet_lite0   `pretrained.py`; needs its packages
random               `random.py`: cosines of a random layer
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from winsor.core.contract import ConfigurationError
from winsor.features import pretrained
from winsor.features import scattering as wavelets
from winsor.features.public import Features, RandomFeatures, oriented_gradients
from winsor.features.public import kept as cached

__all__ = ["FEATURES", "Features", "cached"]


def none() -> Features:
    """Leave images as they are."""
    return lambda images: images


def scattering(
    *,
    groups: int | None = wavelets.GROUPS,
    scales: int = 2,
    angles: int = 8,
    centred: bool = False,
    floor: float | None = None,
) -> Features:
    """Return scattering coefficients of images (`Scattering`)."""
    wavelets.transform_of((32, 32))  # refuses where kymatio is missing, before any row is read
    if (scales, angles, centred, floor) == (2, 8, False, None):
        return lambda images: wavelets.scattering_features(images, groups)
    return wavelets.Scattering(scales, angles, groups, centred=centred, floor=floor)


def oriented(*, orientations: int = 9) -> Features:
    """Return histograms of oriented gradients."""
    return lambda images: oriented_gradients(_with_channel(images), orientations)


def efficientnet(*, side: int = pretrained.SIDE) -> Features:
    """Return features of EfficientNet-Lite0, trained on public images."""
    pretrained.efficientnet_lite0()
    return lambda images: pretrained.frozen_features(images, side=side)


def random_features(
    *, count: int = 2000, bandwidth: float | None = None, seed: int = 0
) -> Features:
    """Return public random features (`RandomFeatures`)."""
    return RandomFeatures(count, bandwidth, seed)


FEATURES: dict[str, Callable[..., Features]] = {
    "none": none,
    "scattering": scattering,
    "oriented_gradients": oriented,
    "efficientnet_lite0": efficientnet,
    "random": random_features,
}


def _with_channel(images: Tensor) -> Tensor:
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() != 4:
        raise ConfigurationError(
            "images must be (rows, channels, height, width) or (rows, height, width). Got "
            f"{tuple(images.shape)} instead. Set data.shape."
        )
    return images
