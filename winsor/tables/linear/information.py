"""Fisher information, released: the preconditioner of a fit and the width of its intervals.

    H   sum_i m_i x_i x_i'       weights m_i cut to M, |x_i|^2 <= reach^2
    D   sum_i r_i^2              residuals cut to c

An estimate that solves sum_i r_i x_i + noise = 0 has the covariance

    H^-1 (phi H + s^2 I) H^-1,   phi = D / sum_i m_i,

rows' randomness by quasi-likelihood (the variance of a residual is phi times its weight) and the
noise of the gradients, s^2 for all of them together. Directions whose curvature noise hides get a
huge variance rather than a wrong one, and no steps: nothing is known along them, and a log link
would exponentiate whatever noise had walked there. No step moves the score of a row by more than
`FARTHEST_STEP` along any direction: where means are far too low, Newton's step for a log link is
the ratio of the means and not its logarithm. Noise is symmetric, so that this does not move the
point at which steps are zero in the mean.

Guarantee
---------
The upper triangle of m x x', off-diagonal entries times sqrt(2), has the length m |x|^2: at most
M reach^2 when a record joins or leaves, and sqrt(2) times that when it becomes another, for two
positive semi-definite matrices have no negative inner product. A squared residual is in [0, c^2].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch

Array = NDArray[np.float64]

ROUNDING = 1 + 1e-9
UNSEEN = 10.0
"""Deviation of a direction that was not seen: a factor of e^10 per unit of spread, either way."""
FARTHEST_STEP = 2.0
"""How far one step may move the score of the longest row along an eigenvector."""
_VISIBLE = 2.0  # an eigenvalue must exceed this many times what noise alone gives


def information_sensitivity(largest: float, reach: float) -> Sensitivity:
    proof = "weights cut, rows of known length: |m x x'| <= M reach^2"
    length = largest * reach**2 * ROUNDING
    return Sensitivity(length, math.sqrt(2) * length, proof)


def square_sensitivity(cut: float) -> Sensitivity:
    return Sensitivity(cut**2 * ROUNDING, cut**2 * ROUNDING, "a square in [0, c^2] per record")


@dataclass(frozen=True)
class Information:
    """A released H, with the size of its noise."""

    matrix: Array
    noise: float
    """Standard deviation of an off-diagonal entry's noise times sqrt(2)."""
    reach: float
    """The largest length of a row."""

    @property
    def floor(self) -> float:
        """What eigenvalues noise alone may give: its spectral norm."""
        return self.noise * np.sqrt(2.0 * len(self.matrix))

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        """(eigenvalues, eigenvectors) of the directions that noise does not hide."""
        values, vectors = np.linalg.eigh(self.matrix)
        seen = values > _VISIBLE * self.floor
        return values[seen], vectors[:, seen]

    def known(self, theta: Array) -> Array:
        """The part of ``theta`` along directions of which anything is known."""
        _, vectors = self._spectrum
        return np.asarray(vectors @ (vectors.T @ theta))

    def steps(self, gradient: Array) -> Array:
        """Newton's step along the known directions, for rows no longer than ``reach``."""
        values, vectors = self._spectrum
        farthest = FARTHEST_STEP / self.reach
        along = np.clip((vectors.T @ gradient) / values, -farthest, farthest)
        return np.asarray(vectors @ along)

    def covariance(self, dispersion: float, noise: float) -> Array:
        """Of the estimate; ``noise`` is the standard deviation of the mean gradient's."""
        values, vectors = self._spectrum
        unseen = np.eye(len(self.matrix)) - vectors @ vectors.T
        variances = dispersion / values + (noise / values) ** 2
        return np.asarray((vectors * variances) @ vectors.T + UNSEEN**2 * unseen)


def release_information(
    rows: Array, weights: Array, largest: float, reach: float, door: PrepaidDoor, noise: Gaussian
) -> Information:
    """H of ``rows`` (n, k) with ``weights`` cut to ``largest``."""
    n, size = rows.shape
    kept = np.clip(np.nan_to_num(weights, posinf=largest), 0.0, largest)
    upper = np.triu_indices(size)
    scale = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    sensitivity = information_sensitivity(largest, reach)
    receipt = door.pay(noise, FullBatch(n), sensitivity, 1, len(scale))
    whole = (rows * kept[:, None]).T @ rows
    released = receipt.release(np.ascontiguousarray(whole[upper] * scale)) / scale
    matrix = np.zeros((size, size))
    matrix[upper] = released
    matrix = matrix + np.triu(matrix, 1).T
    return Information(matrix, receipt.std, reach)


def release_squares(residuals: Array, cut: float, door: PrepaidDoor, noise: Gaussian) -> float:
    """The sum of squares of residuals, each cut to ``cut``."""
    n = len(residuals)
    receipt = door.pay(noise, FullBatch(n), square_sensitivity(cut), 1, 1)
    squares = np.clip(np.nan_to_num(residuals), -cut, cut) ** 2
    return float(receipt.release(np.array([squares.sum()]))[0])
