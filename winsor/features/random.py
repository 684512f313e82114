"""Public random features: a random layer that was drawn before any row was seen.

    x -> sqrt(2/m) cos(W x + b),   W ~ N(0, 1/bandwidth^2),  b uniform on [0, 2 pi)

of norm at most sqrt(2), and about 1: inner products approximate the Gaussian kernel of the rows, so
that a linear model on them is a kernel machine.

Guarantee
---------
W and b come from a public seed, and each row is treated on its own: adding one record adds one
feature row.

References
----------
Rahimi and Recht: Random features for large-scale kernel machines, NIPS 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from winsor.core.checks import positive, whole
from winsor.features.kept import kept


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
