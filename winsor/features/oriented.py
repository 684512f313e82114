"""Frozen features of images without any training: histograms of oriented gradients, and colours.

    per channel gradient (central differences); its length shared among ``orientations`` directions
    by linear interpolation; summed over cells of 4 x 4 pixels; square root; unit norm per cell and
    its right, lower and diagonal neighbours; then the mean colour of each cell; unit norm per image

Guarantee
---------
Nothing is learnt from any data, and each image is treated on its own, so that adding one record
adds one feature row: what is proven for the rows that a model sees holds for the images.

References
----------
Dalal and Triggs: Histograms of oriented gradients for human detection, CVPR 2005. Tramer and Boneh
2021 do the same with scattering coefficients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

CELL = 4


def oriented_gradients(x: Tensor, orientations: int = 9) -> Tensor:
    """(n, c, h, w) -> (n, d) features of norm 1."""
    histogram = F.avg_pool2d(_votes(x, orientations), CELL).sqrt()  # (n, orientations, h/4, w/4)
    squared = histogram.square().sum(1, keepdim=True)
    blocks = F.avg_pool2d(F.pad(squared, (0, 1, 0, 1), mode="replicate"), 2, stride=1)
    normal = histogram / (blocks + 1e-2).sqrt()
    colours = F.avg_pool2d(x, CELL)
    joined = torch.cat([normal.flatten(1), 0.5 * colours.flatten(1)], dim=1)
    return F.normalize(joined)


def _votes(x: Tensor, orientations: int) -> Tensor:
    """Each pixel's gradient length at its direction: (n, orientations, h, w)."""
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    length = torch.hypot(across, down)
    strongest = length.argmax(1, keepdim=True)
    length, across, down = (t.gather(1, strongest) for t in (length, across, down))
    place = torch.atan2(down, across).remainder(math.pi) * (orientations / math.pi)
    low = place.floor()
    share = place - low
    votes = x.new_zeros(len(x), orientations, *x.shape[2:])
    first = low.long() % orientations
    votes.scatter_add_(1, first, length * (1 - share))
    votes.scatter_add_(1, (first + 1) % orientations, length * share)
    return votes
