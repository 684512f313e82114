"""Flatten the spectra of channels and of places, each by moments that are released with noise.

    Z_i        row i as a matrix, channels by places, cut to Frobenius norm b
    release    sum_i (w Z_i / b,  Z_i Z_i' / b^2,  Z_i' Z_i / b^2) + noise, once
    then       Z <- A (Z - mean) B,  A and B the powers -p/2 of both covariances, and every row to
               one norm

Both matrices are small (81 channels and 49 places stand for 3,969 coordinates), so the noise hides
little of them. Eigenvalues below the edge of the noise are raised to it. p = 1 would make much of
directions that say little; on held-out rows of Fashion-MNIST 0.7 did as well as 0.5, better than 1.
(The noise of a private linear model is as large as the rows are long, in every direction alike:
what counts is how much of a row's length is in directions that tell the classes apart.)

Guarantee
---------
|Z Z'| <= |Z|^2 and |Z' Z| <= |Z|^2 in Frobenius norm, so a row adds a vector of norm at most
sqrt(w^2 + 2) to the sum (pairs of coordinates counted once and weighed by sqrt(2)): that is the
sensitivity when a row joins or leaves, twice that under replace-one. Rows are brought to whole
numbers by dropping what is behind the point, which makes none longer, and sums of their products
are whole numbers below 2^53, exact in double precision: the bound holds for what the machine
computes. Everything afterwards is a transform of each row by public numbers.

Cost
----
rows x coordinates x (channels + places) products: seconds for 60,000 rows of 3,969.

References
----------
Gupta, Koren and Singer: Shampoo, ICML 2018 (the separable model). Mehta et al., TMLR 2023.
"""

from __future__ import annotations

import math
import os
from typing import Self

import torch
from torch import Tensor

from winsor.core.checks import fraction, positive
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.features.moments import (
    LEVELS,
    MEAN_SHARE,
    Array,
    ReleasedMoments,
    packed,
    symmetric,
    whole_numbers,
)

AT_ONCE = 500
PROOF = "rows cut to norm 1: |(w Z, Z Z', Z' Z)| <= sqrt(w^2 + 2)"


class PrivateAxes(ReleasedMoments):
    """Channels and places decorrelated by privately released second moments of each.

    Parameters
    ----------
    epsilon, delta
        The budget of the release; or
    noise_multiplier
        its noise over its sensitivity.
    power
        How far spectra are flattened: 0 leaves them, 1 makes them flat.
    place_power
        The same for places alone; None takes ``power``.
    bound
        Public norm to which rows are cut; None takes the square root of the number of coordinates,
        which suits rows that were normalised one by one.
    relation, seed, allow_large_delta, ledger
        As in `winsor.make_private`.

    Examples
    --------
    >>> rows = torch.randn(3000, 6, 2, 2, generator=torch.Generator().manual_seed(0))
    >>> rows[:, 0] *= 4
    >>> axes = PrivateAxes(epsilon=1.0, delta=1e-5, bound=10.0, power=1.0, seed=0).fit(rows)
    >>> axes(rows).shape, axes.guarantee_.epsilon <= 1.0
    (torch.Size([3000, 6, 2, 2]), True)
    >>> bool(axes(rows)[:, 0].std() < 1.5)
    True
    """

    mean_: Tensor
    channels_: Tensor
    places_: Tensor
    kept = ("mean_", "channels_", "places_")

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        noise_multiplier: float | None = None,
        power: float = 0.7,
        place_power: float | None = None,
        bound: float | None = None,
        relation: str = "add_or_remove_one",
        seed: int | None = None,
        allow_large_delta: bool = False,
        ledger: str | os.PathLike[str] | None = None,
    ) -> None:
        self._store(locals())
        self.power = _power("power", power)
        self.place_power = self.power if place_power is None else _power("place_power", place_power)
        self.bound = None if bound is None else positive("bound", bound)

    @torch.no_grad()
    def fit(self, features: Tensor) -> Self:
        """Release the moments of ``features`` (rows, channels, ...), once."""
        if features.dim() < 3:
            raise ConfigurationError(
                "features must be (rows, channels, places, ...). Got "
                f"{tuple(features.shape)} instead."
            )
        n, c, p = len(features), features.shape[1], math.prod(features.shape[2:])
        sensitivity = Sensitivity.per_sample(math.sqrt(MEAN_SHARE**2 + 2), PROOF)
        bound = math.sqrt(c * p) if self.bound is None else self.bound
        sums = self._sums(features, bound)
        receipt = self._paid(n, sensitivity, (1, len(sums)), (sums, bound))
        released = receipt.release(sums) / n
        mean = torch.from_numpy(released[: c * p].reshape(c, p) / MEAN_SHARE) * bound
        pairs = c * (c + 1) // 2
        within = symmetric(released[c * p : c * p + pairs], c) * bound**2 - mean @ mean.T
        across = symmetric(released[c * p + pairs :], p) * bound**2 - mean.T @ mean
        noise = receipt.std / n * bound**2
        self.mean_ = mean.float().view(features.shape[1:])
        self.channels_ = _flattening(within, noise, self.power).float()
        self.places_ = _flattening(across, noise, self.place_power).float()
        return self._certified(n)

    def _sums(self, features: Tensor, bound: float) -> Array:
        """What is released, without noise: means, then pairs of channels, of places, each once."""
        c, p = features.shape[1], math.prod(features.shape[2:])
        mean = torch.zeros(c * p, dtype=torch.float64)
        within, across = (torch.zeros(side, side, dtype=torch.float64) for side in (c, p))
        for part in features.split(AT_ONCE):
            rows = whole_numbers(part.double().flatten(1), bound)
            mean += rows.sum(0)
            by_channel = rows.view(-1, c, p).transpose(0, 1).reshape(c, -1)
            by_place = rows.view(-1, p)
            within += by_channel @ by_channel.T
            across += by_place.T @ by_place
        length = LEVELS * math.sqrt(c * p)
        pairs = [packed(moments) / length**2 for moments in (within, across)]
        return torch.cat([mean * (MEAN_SHARE / length), *pairs]).numpy()

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Return the rows, centred and flattened, each of norm sqrt(coordinates)."""
        self._refuse_unfitted()
        mean, left, right = (
            part.to(features.dtype) for part in (self.mean_, self.channels_, self.places_)
        )
        flat = left @ (features - mean).flatten(2) @ right
        norms = torch.linalg.vector_norm(flat, dim=(1, 2), keepdim=True)
        size = math.sqrt(math.prod(flat.shape[1:]))
        return (flat * (size / norms.clamp_min(1e-12))).view(features.shape)


def _power(name: str, value: float) -> float:
    return 1.0 if value == 1 else fraction(name, value)


def _flattening(moments: Tensor, noise: float, power: float) -> Tensor:
    """The power -p/2 of a covariance whose entries bear this noise."""
    values, vectors = torch.linalg.eigh(moments)
    edge = math.sqrt(2 * len(moments)) * noise  # of the eigenvalues of the noise
    raised = values.clamp_min(edge)
    return (vectors * (raised / raised.mean()) ** (-power / 2)) @ vectors.T
