"""Flatten the spectrum of features by moments that are released with noise.

    each of a few rounds, z_i being row i as it stands, cut to norm b:
    release    sum_i (w z_i / b, z_i z_i' / b^2) + noise
    then       z <- z - mean,  and  z <- z - U (1 - s) U' z

U are the directions whose released variance is above everything that the noise alone would show,
and s shrinks them to half of that; what is below cannot be told from noise, and stays. Later rounds
begin with shorter rows, so that the same noise reaches further down. b is public: given at first,
then the root of the released mean square norm. At the end coordinates have mean square 1. (A linear
model under noise must be trained in few long steps, and the longest directions say how long.)

Guarantee
---------
A row adds a vector of norm at most sqrt(1 + w^2) to each round's sum (|z z'| = |z|^2, with every
pair of coordinates counted once and weighed by sqrt(2)): that is the sensitivity when a row joins
or leaves, twice that under replace-one. Rows are brought to integers by dropping what is behind the
point, which makes none longer, and sums of products of small integers are exact, so that the bound
holds for what the machine computes. Everything afterwards is a transform of each row by public
numbers; all rounds are in ``ledger_``.

Cost
----
rows x coordinates^2 products a round, and one eigendecomposition: for 60,000 rows of 3,969
coordinates about half a minute of one core a round.

References
----------
Mehta et al.: Differentially private image classification from features, TMLR 2023. The edge of the
noise: Wigner; what remains of eigenvalues above it: Baik, Ben Arous and Peche 2005.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.features.moments import (
    LEVELS,
    MEAN_SHARE,
    Array,
    ReleasedMoments,
    packed,
    symmetric,
    whole_numbers,
)

AT_ONCE, BLOCK = 1024, 1024
"""Sums of 1,024 products of `whole_numbers` stay below 2^24, where single precision still has every
integer."""
PROOF = "rows cut to norm 1: |(w z, z z')| <= sqrt(1 + w^2)"


@dataclass(frozen=True)
class Round:
    """What one round does to a row."""

    mean: Tensor
    directions: Tensor
    shrunk: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Shorten the rows along the directions."""
        mean, directions, shrunk = (
            part.to(rows.dtype) for part in (self.mean, self.directions, self.shrunk)
        )
        centred = rows - mean
        along = (centred @ directions) * (1 - shrunk)
        return torch.addmm(centred, along, directions.T, alpha=-1)


class PrivateWhitening(ReleasedMoments):
    """Rows whose longest directions are shortened by privately released second moments.

    Parameters
    ----------
    epsilon, delta
        The budget of all rounds; or
    noise_multiplier
        the noise of each over its sensitivity.
    rounds
        How often moments are released.
    bound
        Public norm to which rows are cut in the first round; None takes the square root of the
        number of coordinates, which suits rows that were normalised one by one.
    relation, seed, allow_large_delta, ledger
        As in `winsor.make_private`.

    Examples
    --------
    >>> rows = torch.randn(3000, 20, generator=torch.Generator().manual_seed(0))
    >>> rows[:, 0] *= 4
    >>> white = PrivateWhitening(epsilon=1.0, delta=1e-5, bound=6.0, seed=0).fit(rows)
    >>> bool(white(rows)[:, 0].std() < 2.0), white.guarantee_.epsilon <= 1.0
    (True, True)
    """

    rounds_: list[Round]
    size_: float

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        noise_multiplier: float | None = None,
        rounds: int = 2,
        bound: float | None = None,
        relation: str = "add_or_remove_one",
        seed: int | None = None,
        allow_large_delta: bool = False,
        ledger: str | os.PathLike[str] | None = None,
    ) -> None:
        self._store(locals())
        self.rounds = whole("rounds", rounds)
        self.bound = None if bound is None else positive("bound", bound)

    @torch.no_grad()
    def fit(self, features: Tensor) -> Self:
        """Release the moments of ``features`` (rows, coordinates), round by round."""
        if features.dim() != 2:
            raise ConfigurationError(
                f"features must be (rows, coordinates). Got {tuple(features.shape)} instead."
            )
        n, d = features.shape
        sensitivity = Sensitivity.per_sample(math.hypot(1, MEAN_SHARE), PROOF)
        releases = (self.rounds, d + d * (d + 1) // 2)
        receipt = self._paid(n, sensitivity, releases, (features.numpy(), self.bound, self.rounds))
        bound = math.sqrt(d) if self.bound is None else self.bound
        self.rounds_, self.size_ = [], 1.0
        for _ in range(self.rounds):
            released = receipt.release(self._sums(features, bound)) / n
            edge = math.sqrt(2 * d) * receipt.std / n  # of the eigenvalues of the noise
            mean, moments = torch.from_numpy(released[:d] / MEAN_SHARE), symmetric(released[d:], d)
            found, bound = _round(mean * bound, moments * bound**2, edge * bound**2)
            self.rounds_.append(found)
        self.size_ = bound / math.sqrt(d)
        return self._certified(n)

    def state_dict(self) -> dict[str, Any]:
        """Return the public numbers of a fitted transform."""
        self._refuse_unfitted()
        return {"rounds": [vars(one) for one in self.rounds_], "size": self.size_}

    def load_state_dict(self, state: Mapping[str, Any], ledger: Ledger) -> None:
        """Put back the numbers of a fitted transform, which ``ledger`` has paid for."""
        super().load_state_dict(state, ledger)
        self.rounds_, self.size_ = [Round(**one) for one in state["rounds"]], float(state["size"])

    def _sums(self, features: Tensor, bound: float) -> Array:
        """What is released, without noise: means, then pairs of coordinates, each once."""
        d = features.shape[1]
        first = torch.zeros(d, dtype=torch.float64)
        second = torch.zeros(d, d, dtype=torch.float64)
        for part in features.split(AT_ONCE):
            # Rounding to whole numbers makes much of a last digit, which may hang on the shape of
            # a product and on a row's place in it: all parts have one shape, rows their place.
            alike = torch.zeros(AT_ONCE, d, dtype=torch.float64)
            alike[: len(part)] = part
            rows = whole_numbers(self._transformed(alike)[: len(part)], bound).float()
            first += rows.sum(0)
            for left in range(0, d, BLOCK):  # above the diagonal is enough; exact: see AT_ONCE
                across = rows[:, left : left + BLOCK].T @ rows[:, left:]
                second[left : left + BLOCK, left:] += across
        length = LEVELS * math.sqrt(d)
        return torch.cat([first * (MEAN_SHARE / length), packed(second) / length**2]).numpy()

    def _transformed(self, rows: Tensor) -> Tensor:
        for one in self.rounds_:
            rows = one(rows)
        return rows

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Return the rows, centred, flattened, with coordinates of mean square 1."""
        self._refuse_unfitted()
        return self._transformed(features) / self.size_


def _round(mean: Tensor, moments: Tensor, edge: float) -> tuple[Round, float]:
    """The shrinking of what is above the ``edge`` of the noise, and the norm of rows after it."""
    covariance = moments - torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(covariance.float())
    above = values > edge
    seen = values[above].double()
    true = (seen + (seen.square() - edge**2).clamp_min(0).sqrt()) / 2  # noise lengthens: BBP
    shrunk = (edge / 2 / true).sqrt().clamp_max(1.0)
    left = float(covariance.diagonal().sum() - (true * (1 - shrunk.square())).sum())
    found = Round(mean.float(), vectors[:, above].contiguous(), shrunk.float())
    return found, math.sqrt(max(left, edge / 2))
