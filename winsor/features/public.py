"""Features that were fixed before any row was seen: oriented gradients, and a random layer.

oriented_gradients   per channel gradient (central differences); its length shared among
                     ``orientations`` directions by linear interpolation; summed over cells of 4 x 4
                     pixels; square root; unit norm per cell and its right, lower and diagonal
                     neighbours; then the mean colour of each cell; unit norm per image
RandomFeatures       x -> sqrt(2/m) cos(W x + b), W ~ N(0, 1/bandwidth^2), b uniform on [0, 2 pi):
                     of norm at most sqrt(2); inner products approximate the Gaussian kernel of the
                     rows, so that a linear model on them is a kernel machine

`kept` stores what was computed once, under the content of the rows. The file is a transform of the
rows: keep it as safe as the rows.

Guarantee
---------
Nothing is learnt from any data (W and b come from a public seed), and each row is treated on its
own, so that adding one record adds one feature row: what is proven for the rows that a model sees
holds for the images.

References
----------
Dalal and Triggs: Histograms of oriented gradients for human detection, CVPR 2005. Tramer and Boneh
2021 do the same with scattering coefficients. Rahimi and Recht: Random features for large-scale
kernel machines, NIPS 2007.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.core.checks import positive, whole

CELL = 4


def oriented_gradients(x: Tensor, orientations: int = 9) -> Tensor:
    """Compute (n, d) features of norm 1 of images (n, c, h, w)."""
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


@dataclass(frozen=True)
class RandomFeatures:
    """(n, ...) -> (n, count); rows are flattened.

    Parameters
    ----------
    count
        Number of features.
    bandwidth
        Distance at which two rows begin to look different. None: the square root of the number of
        inputs, which suits inputs of order one.
    seed
        Public.
    cache
        A folder in which results are kept under the content of the rows.

    Examples
    --------
    >>> RandomFeatures(50)(torch.zeros(3, 2, 2)).shape
    torch.Size([3, 50])
    """

    count: int = 2000
    bandwidth: float | None = None
    seed: int = 0
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        whole("count", self.count)
        if self.bandwidth is not None:
            positive("bandwidth", self.bandwidth)

    def __call__(self, rows: Tensor) -> Tensor:
        label = f"random-{self.count}-{self.bandwidth}-{self.seed}"
        return kept(label, self._compute, rows, self.cache)

    @torch.no_grad()
    def _compute(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(1).float()
        inputs = flat.shape[1]
        generator = torch.Generator().manual_seed(self.seed)
        width = math.sqrt(inputs) if self.bandwidth is None else self.bandwidth
        weights = torch.randn(inputs, self.count, generator=generator) / width
        phases = torch.rand(self.count, generator=generator) * (2 * math.pi)
        return (flat @ weights + phases).cos_().mul_(math.sqrt(2 / self.count))


Features = Callable[[Tensor], Tensor]


def kept(name: str, features: Features, rows: Tensor, folder: str | Path | None) -> Tensor:
    """Return ``features(rows)``, from ``folder`` if they are there, and put there if not."""
    if folder is None:
        return features(rows)
    folder = Path(folder)
    content = hashlib.blake2b(rows.contiguous().numpy().tobytes(), digest_size=12)
    path = folder / f"{name}-{len(rows)}-{content.hexdigest()}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with open(partial := path.with_suffix(".partial"), "wb") as file:
            np.save(file, features(rows).numpy())
        partial.rename(path)
    return torch.from_numpy(np.load(path))
