"""Features by name: what the [features] table of a configuration may say.

none                 pixels stay pixels
scattering           `scattering.py`; needs kymatio
oriented_gradients   `oriented.py`
efficientnet_lite0   `pretrained.py`; needs its packages
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from winsor.contract import ConfigurationError
from winsor.features import pretrained
from winsor.features import scattering as wavelets
from winsor.features.oriented import oriented_gradients

Features = Callable[[Tensor], Tensor]


def none() -> Features:
    return lambda images: images


def scattering(*, groups: int | None = wavelets.GROUPS) -> Features:
    wavelets.transform_of((32, 32))  # refuses where kymatio is missing, before any row is read
    return lambda images: wavelets.scattering_features(images, groups)


def oriented(*, orientations: int = 9) -> Features:
    return lambda images: oriented_gradients(_with_channel(images), orientations)


def efficientnet(*, side: int = pretrained.SIDE) -> Features:
    pretrained.efficientnet_lite0()
    return lambda images: pretrained.frozen_features(images, side=side)


FEATURES: dict[str, Callable[..., Features]] = {
    "none": none,
    "scattering": scattering,
    "oriented_gradients": oriented,
    "efficientnet_lite0": efficientnet,
}


def cached(name: str, features: Features, images: Tensor, folder: Path | None) -> Tensor:
    """``features(images)``, kept in ``folder`` under the content of the images, if one is given.

    The file is a transform of the rows: keep it as safe as the rows.
    """
    if folder is None:
        return features(images)
    content = hashlib.blake2b(images.contiguous().numpy().tobytes(), digest_size=12)
    path = folder / f"{name}-{len(images)}-{content.hexdigest()}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with open(partial := path.with_suffix(".partial"), "wb") as file:
            np.save(file, features(images).numpy())
        partial.rename(path)
    return torch.from_numpy(np.load(path))


def _with_channel(images: Tensor) -> Tensor:
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() != 4:
        raise ConfigurationError(
            "images must be (rows, channels, height, width) or (rows, height, width). Got "
            f"{tuple(images.shape)} instead. Set data.shape."
        )
    return images
