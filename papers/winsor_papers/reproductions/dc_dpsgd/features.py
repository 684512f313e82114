"""Frozen public features of colour images in place of a network's.

Paper 1 trains only a linear layer on CIFAR-10, on features of a network that was pre-trained on
public images. What stands in for them is just as public, because it learns nothing from any data:
`winsor.features.oriented_gradients`.
"""

from __future__ import annotations

import torch

from winsor.features.public import oriented_gradients
from winsor_papers.reproductions.dc_dpsgd.images import Images


def featured(images: Images) -> Images:
    """The same data set with features in place of pixels."""
    x, x_test = (
        torch.cat([oriented_gradients(part) for part in pixels.split(2000)])
        for pixels in (images.x, images.x_test)
    )
    return Images(images.name, x, images.y, x_test, images.y_test)
