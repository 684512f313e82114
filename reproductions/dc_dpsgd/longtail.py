"""Long-tailed versions of a data set, and the loss that paper 1 trains them with (LDAM-DRW).

    rows of class j   n_j = n_max * ratio^(-j / (classes - 1)),                  ratio = 100
    LDAM              cross-entropy of s (z_y - D_y, z_other),  D_j = m (min_i n_i / n_j)^(1/4)
    DRW               for the last fifth of the run times w_y, where w_j is proportional to
                      (1 - b) / (1 - b^n_j), has mean 1, and b = 0.9999

The profile with n_max = 5000 is the one that Appendix G.1 lists for CIFAR-10-HT (up to one row).

Guarantee
---------
Class counts of private data are private. Here they are public by construction: the *profile* was
chosen by us, not counted, and the loss reads only the profile. Margins and weights look at a row's
own label and at the profile, so the loss of a row depends on that row alone and clipping bounds it
as any other. With real data the counts must come from public knowledge or be released with noise
on the same ledger.

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
from winsor_reproductions.dc_dpsgd.images import Images

from winsor.contract import ConfigurationError


def exponential_profile(largest: int, classes: int, ratio: float = 100.0) -> tuple[int, ...]:
    """Rows per class, falling geometrically from ``largest`` to ``largest / ratio``.

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


def long_tailed(images: Images, profile: tuple[int, ...]) -> Images:
    """The first n_j training rows of each class j; the test rows stay balanced."""
    kept = torch.zeros(len(images.y), dtype=torch.bool)
    for label, count in enumerate(profile):
        (positions,) = torch.nonzero(images.y == label, as_tuple=True)
        if len(positions) < count:
            raise ConfigurationError(
                f"class {label} of {images.name} must have at least {count} rows for this profile. "
                f"Got {len(positions)} instead. Lower the largest class."
            )
        kept[positions[:count]] = True
    return Images(f"{images.name}-HT", images.x[kept], images.y[kept], images.x_test, images.y_test)


@dataclass(frozen=True)
class LdamDrw:
    """LDAM with deferred re-weighting, one value per row, from a public profile."""

    profile: tuple[int, ...]
    largest_margin: float = 0.5
    scale: float = 1.0
    beta: float = 0.9999
    deferred: float = 0.8
    """Re-weighting starts after this part of the run (160 of 200 epochs in Cao et al.)."""

    def margins(self) -> Tensor:
        counts = torch.tensor(self.profile, dtype=torch.float32)
        return self.largest_margin * (counts.min() / counts) ** 0.25

    def weights(self) -> Tensor:
        counts = torch.tensor(self.profile, dtype=torch.float64)
        raw = (1 - self.beta) / (1 - self.beta**counts)
        return (raw / raw.mean()).float()

    def __call__(self, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        shift = F.one_hot(labels, len(self.profile)) * self.margins()
        losses = F.cross_entropy(self.scale * (logits - shift), labels, reduction="none")
        return losses if progress < self.deferred else losses * self.weights()[labels]
