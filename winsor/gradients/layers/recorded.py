"""The operation that fused modules are taken apart into: a recorded ``x W^T + b``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from winsor.gradients.parameters import Site

Part = tuple[int, int]
"""First row and one past the last row."""


class RecordedLinear(Protocol):
    """``x W^T + b`` with W and b by their names inside the module.

    ``part`` selects rows of W and entries of b where they hold several projections at once.
    """

    def __call__(
        self, x: Tensor, weight: str, bias: str | None, part: Part | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Projection:
    """One such operation of a site: which parameters, and which part of them."""

    site: Site
    weight: str
    bias: str | None
    part: Part | None = None

    def __str__(self) -> str:
        return f"{self.weight} of {self.site}"

    def __call__(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        if self.part is not None:
            first, last = self.part
            weight = weight[first:last] if len(weight) > last - first else weight
            bias = bias[first:last] if bias is not None and len(bias) > last - first else bias
        return F.linear(x, weight, bias)

    def padded(self, g: Tensor, size: int) -> Tensor:
        """The output-gradient as seen by a parameter with ``size`` rows: zero outside the part."""
        if self.part is None or size == g.shape[-1]:
            return g
        return F.pad(g, (self.part[0], size - self.part[1]))
