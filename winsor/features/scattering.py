"""Scattering coefficients: two layers of fixed wavelets, a modulus after each, then averages.

    (n, h, w) -> (n, 81, h/4, w/4)      J = 2, 8 angles:  1 + 16 + 64 channels per colour

normalised per image in groups of channels (group normalisation without parameters), so that no
statistics of the data are needed. ``groups=None`` leaves the coefficients as they are, for those
who release channel statistics with noise.

Guarantee
---------
A fixed transform of each image by itself: adding one record adds one feature row.

Cost
----
Needs the package kymatio: ``pip install 'winsor[scattering]'``. Compute once and keep (``cache``).

References
----------
Oyallon et al.: Scattering networks for hybrid representation learning, PAMI 2018. Tramer and Boneh:
Differentially private learning needs better features (or much more data), ICLR 2021; ModelMix
(paper 5), section 5.1, trains on them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.contract import ConfigurationError

CHANNELS, GROUPS = 81, 27
CHUNK = 250


@torch.no_grad()
def scattering_features(images: Tensor, groups: int | None = GROUPS) -> Tensor:
    """(n, h, w) -> (n, 81, h/4, w/4), or (n, colours, h, w) -> (n, 81 colours, h/4, w/4)."""
    if images.dim() not in (3, 4):
        raise ConfigurationError(
            "images must be (rows, height, width) or (rows, colours, height, width). Got "
            f"{tuple(images.shape)} instead."
        )
    transform = transform_of(tuple(images.shape[-2:]))
    parts = []
    for part in images.split(CHUNK):
        found = transform(part.contiguous())  # (n, 81, h', w') or (n, colours, 81, h', w')
        parts.append(found.flatten(1, 2) if images.dim() == 4 else found)
    features = torch.cat(parts)
    if groups is None:
        return features
    colours = images.shape[1] if images.dim() == 4 else 1
    return F.group_norm(features, groups * colours)


def transform_of(shape: tuple[int, ...]) -> Any:
    """kymatio's transform for images of this height and width."""
    try:
        # kymatio.torch also imports its 3-d transform, which recent versions of scipy break
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError as error:
        raise ConfigurationError(
            "scattering features must be computed by kymatio. Got no such package instead. "
            "Install it: pip install 'winsor[scattering]'."
        ) from error
    return ScatteringTorch2D(J=2, shape=shape, L=8)
