"""Frozen features of images: fixed or public transforms that treat each row on its own.

`named.py` has them by name, as the [features] table of a configuration does.
"""

from __future__ import annotations

from winsor.features.oriented import oriented_gradients
from winsor.features.pretrained import frozen_features
from winsor.features.scattering import scattering_features

__all__ = ["frozen_features", "oriented_gradients", "scattering_features"]
