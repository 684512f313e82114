"""Frozen features of images: fixed or public transforms that treat each row on its own.

`Scattering`, `Pretrained` and `RandomFeatures` are callables; `PrivateNorm` standardises channels
by a release with noise, `PrivateWhitening` shortens the longest directions by a few, `PrivateAxes`
flattens channels and places each by themselves. `MirrorShared` is what mirror images have in
common. `named.py` has features by name, as the [features] table of a configuration.
"""

from __future__ import annotations

from winsor.features.pretrained import Pretrained, frozen_features
from winsor.features.private_axes import PrivateAxes
from winsor.features.private_norm import PrivateNorm
from winsor.features.private_whitening import PrivateWhitening
from winsor.features.public import RandomFeatures, oriented_gradients
from winsor.features.scattering import MirrorShared, Scattering, scattering_features

__all__ = [
    "MirrorShared",
    "Pretrained",
    "PrivateAxes",
    "PrivateNorm",
    "PrivateWhitening",
    "RandomFeatures",
    "Scattering",
    "frozen_features",
    "oriented_gradients",
    "scattering_features",
]
