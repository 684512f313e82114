"""Standardise the channels of features by means and variances that are released with noise.

    m_i, s_i   row i's mean and mean square of every channel, over its positions
    release    sum_i (clip(m_i / b_1), clip(s_i / b_2)) + noise,   clip to norm 1
    x -> (x - mean) / deviation of its channel, from the released moments

One joint release of 2 x channels numbers. Means and squares get bounds of their own, because
squares of scattering coefficients are far smaller than the coefficients: under one bound the noise
that the means can bear would drown the variances.

The deviation of a channel is at least what the noise alone would feign, so that a channel that is
nearly constant is not blown up.

Guarantee
---------
Each half of a row's vector has norm at most 1, the whole at most sqrt(2): that is the sensitivity
when a row joins or leaves (twice that under replace-one). Everything afterwards is a transform of
each row by public numbers. The release is in ``ledger_``; `winsor.total` adds it to the training's,
and ``make_private(after=[norm])`` chooses the training's noise so that both fit into one epsilon.

References
----------
Tramer and Boneh 2021, section 4.1 (there two releases, of means and of variances).
"""

from __future__ import annotations

import math
import os
from typing import Self

import numpy as np
import torch
from torch import Tensor

from winsor.core.arithmetic.rows import clip_rows, squares, sum_rows, summed
from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.features.moments import Array, ReleasedMoments

CHUNK = 1000
PROOF = "channel means and mean squares cut to norm 1 each: |(m, s)| <= sqrt(2)"


class PrivateNorm(ReleasedMoments):
    """Channels standardised by privately released moments.

    Parameters
    ----------
    epsilon, delta
        The budget of the release; or
    noise_multiplier
        its noise over its sensitivity.
    mean_bound, square_bound
        Public sizes of a row's vector of channel means, and of mean squares. The defaults suit
        scattering coefficients of images in [0, 1].
    relation, seed, allow_large_delta, ledger
        As in `winsor.make_private`.

    Examples
    --------
    >>> features = torch.rand(2000, 4, 7, 7, generator=torch.Generator().manual_seed(0))
    >>> norm = PrivateNorm(epsilon=1.0, delta=1e-5, mean_bound=2.0, square_bound=2.0).fit(features)
    >>> norm(features).shape
    torch.Size([2000, 4, 7, 7])
    >>> norm.guarantee_.epsilon <= 1.0
    True
    """

    mean_: Tensor
    deviation_: Tensor
    kept = ("mean_", "deviation_")

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        noise_multiplier: float | None = None,
        mean_bound: float = 1.0,
        square_bound: float = 0.05,
        relation: str = "add_or_remove_one",
        seed: int | None = None,
        allow_large_delta: bool = False,
        ledger: str | os.PathLike[str] | None = None,
    ) -> None:
        self._store(locals())
        self.mean_bound = positive("mean_bound", mean_bound)
        self.square_bound = positive("square_bound", square_bound)

    @torch.no_grad()
    def fit(self, features: Tensor) -> Self:
        """Release the moments of the channels (axis 1) of ``features``."""
        if features.dim() < 2:
            raise ConfigurationError(
                f"features must be (rows, channels, ...). Got {tuple(features.shape)} instead."
            )
        n, channels = features.shape[:2]
        sensitivity = Sensitivity.per_sample(math.sqrt(2), PROOF)
        sums = self._sums(features)
        bound_to = (sums, self.mean_bound, self.square_bound)
        receipt = self._paid(n, sensitivity, (1, 2 * channels), bound_to)
        means, squares = receipt.release(sums.ravel()).reshape(2, channels) / n
        means, squares = means * self.mean_bound, squares * self.square_bound
        feigned = receipt.std / n * self.square_bound
        variances = np.maximum(squares - means**2, feigned)
        self.mean_ = torch.from_numpy(means).float()
        self.deviation_ = torch.from_numpy(np.sqrt(variances)).float()
        return self._certified(n)

    def _sums(self, features: Tensor) -> Array:
        """What is released, without noise: (2, channels)."""

        def halves(part: Tensor) -> Array:
            flat = part.double().reshape(*part.shape[:2], -1).numpy()
            means = flat.mean(axis=2) / self.mean_bound
            powers = squares(flat).mean(axis=2) / self.square_bound
            return np.stack([sum_rows(clip_rows(half, 1.0)) for half in (means, powers)])

        return summed(halves(part) for part in features.split(CHUNK))

    def __call__(self, features: Tensor) -> Tensor:
        """Return (features - mean_) / deviation_, channel by channel."""
        self._refuse_unfitted()
        shape = (-1, *[1] * (features.dim() - 2))
        found: Tensor = (features - self.mean_.view(shape)) / self.deviation_.view(shape)
        return found
