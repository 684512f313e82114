"""LDAM-DRW: margins and, late in a run, weights for rare classes, from class counts.

    LDAM   cross-entropy of s (z_y - D_y, z_other),  D_j = m (min_i n_i / n_j)^(1/4)
    DRW    for the last fifth of the run times w_y, where w_j is proportional to
           (1 - b) / (1 - b^n_j), has mean 1, and b = 0.9999

Paper 1 trains its long-tailed data with it; there n_j = n_max ratio^(-j / (classes - 1)).

Guarantee
---------
Margins and weights look at a row's own label and at the profile, so the loss of a row depends on
that row alone and clipping bounds it as any other. Class counts of private data are private: the
profile comes from public knowledge, or from `released_counts`, whose ledger `winsor.total` adds to
the training's; it is never counted.

References
----------
Cao, Wei, Gaidon, Arechiga, Ma: Learning imbalanced datasets with label-distribution-aware margin
loss, NeurIPS 2019, equations 11 to 13 and Algorithm 1. The authors normalise the last layer and
scale its cosines by s = 30; here logits are free, so that s = 1 and the rate plays its part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.core.checks import positive, probability, refusal
from winsor.core.contract import ConfigurationError


def exponential_profile(largest: int, classes: int, ratio: float = 100.0) -> tuple[int, ...]:
    """Return rows per class, falling geometrically from ``largest`` to ``largest / ratio``.

    >>> exponential_profile(5000, 10)
    (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
    """
    if largest < 1 or classes < 2 or ratio < 1:
        raise ConfigurationError(
            "largest must be >= 1, classes >= 2 and ratio >= 1. Got "
            f"{largest!r}, {classes!r}, {ratio!r} instead."
        )
    counts = (largest * ratio ** (-j / (classes - 1)) for j in range(classes))
    return tuple(max(1, math.floor(count + 1e-9)) for count in counts)


@dataclass(frozen=True)
class LdamDrw:
    """LDAM with deferred re-weighting, one value per row, from a public or released profile.

    >>> loss = LdamDrw(exponential_profile(100, 3))
    >>> loss(torch.zeros(2, 3), torch.tensor([0, 2]), progress=0.0).shape
    torch.Size([2])
    """

    profile: tuple[float, ...]
    """Rows of each class: public, or `released_counts(...).counts`."""
    largest_margin: float = 0.5
    scale: float = 1.0
    beta: float = 0.9999
    deferred: float = 0.8
    """Re-weighting starts after this part of the run (160 of 200 epochs in Cao et al.)."""

    def __post_init__(self) -> None:
        if len(self.profile) < 2 or any(not n >= 1 for n in self.profile):
            raise refusal("profile", "a count of at least 1 for each class", self.profile)
        if not (math.isfinite(self.largest_margin) and self.largest_margin >= 0):
            raise refusal("largest_margin", "finite and at least 0", self.largest_margin)
        positive("scale", self.scale)
        probability("beta", self.beta)
        if not 0 <= self.deferred <= 1:
            raise refusal("deferred", "in [0, 1]", self.deferred)

    def margins(self) -> Tensor:
        """Return the margin of each class: larger for rarer classes."""
        counts = torch.tensor(self.profile, dtype=torch.float32)
        return self.largest_margin * (counts.min() / counts) ** 0.25

    def weights(self) -> Tensor:
        """Return the weight of each class in the loss at the current step."""
        counts = torch.tensor(self.profile, dtype=torch.float64)
        raw = (1 - self.beta) / (1 - self.beta**counts)
        return (raw / raw.mean()).float()

    def __call__(self, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Return losses of the rows; ``progress`` is the part of the run that is over, from
        0 to 1."""
        shift = F.one_hot(labels, len(self.profile)) * self.margins()
        losses = F.cross_entropy(self.scale * (logits - shift), labels, reduction="none")
        return losses if progress < self.deferred else losses * self.weights()[labels]
