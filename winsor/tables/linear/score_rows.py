"""Rows of known length, and the sums over them that generalised linear models release.

    score   sum_i r_i x_i          residuals cut to c, |x_i| <= reach
    H       sum_i m_i x_i x_i'     weights m_i cut to M: Fisher information
    D       sum_i r_i^2            residuals cut to c

An estimate that solves sum_i r_i x_i + noise = 0 has the covariance H^-1 (phi H + s^2 I) H^-1 with
phi = D / sum_i m_i: the rows' randomness by quasi-likelihood, and the noise s of the gradients.
Directions whose curvature noise hides get a huge variance and no steps: a log link would
exponentiate whatever noise had walked there. No step moves the score of a row by more than
`FARTHEST_STEP` along any direction, since Newton's step for a log link is far too long where means
are far too low. Noise is symmetric, so that this does not move the point at which steps vanish.

Guarantee
---------
A row is (u, 1) with |(u, 1)| <= reach, or zero, whatever it holds: its term of a score, a residual
cut at c times the row, is no longer than c reach. The upper triangle of m x x', off-diagonal
entries times sqrt(2), has the length m |x|^2: at most M reach^2 when a record joins or leaves, and
sqrt(2) times that when it becomes another, for two positive semi-definite matrices have no negative
inner product. A squared residual is in [0, c^2].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from winsor.core.arithmetic import rows as arithmetic
from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.inputs import within
from winsor.tables.linear.metric import packed_triangle, unpacked_triangle
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]

UNSEEN = 10.0
"""Deviation of a direction that was not seen: a factor of e^10 per unit of spread, either way."""
FARTHEST_STEP = 2.0
"""How far one step may move the score of the longest row along an eigenvector."""
_VISIBLE = 2.0  # an eigenvalue must exceed this many times what noise alone gives


def information_sensitivity(largest: float, reach: float) -> Sensitivity:
    """Return how far a row of at most ``reach`` moves the information."""
    proof = "weights cut, rows of known length: |m x x'| <= M reach^2"
    length = largest * reach**2
    return Sensitivity(length, math.sqrt(2) * length, proof)


def square_sensitivity(cut: float) -> Sensitivity:
    """Return how far a residual cut at ``cut`` moves the sum of squares."""
    return Sensitivity(cut**2, cut**2, "a square in [0, c^2] per record")


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
        """Return the part of ``theta`` along directions of which anything is known."""
        _, vectors = self._spectrum
        return np.asarray(vectors @ (vectors.T @ theta))

    def steps(self, gradient: Array) -> Array:
        """Return Newton's step along the known directions, for rows no longer than ``reach``."""
        values, vectors = self._spectrum
        farthest = FARTHEST_STEP / self.reach
        along = np.clip((vectors.T @ gradient) / values, -farthest, farthest)
        return np.asarray(vectors @ along)

    def covariance(self, dispersion: float, noise: float) -> Array:
        """Return the covariance of the estimate; ``noise`` is the standard deviation of the mean
        gradient's."""
        values, vectors = self._spectrum
        unseen = np.eye(len(self.matrix)) - vectors @ vectors.T
        variances = dispersion / values + (noise / values) ** 2
        return np.asarray((vectors * variances) @ vectors.T + UNSEEN**2 * unseen)


def release_information(
    rows: Array, weights: Array, largest: float, reach: float, door: PrepaidDoor, noise: Gaussian
) -> Information:
    """Release H of ``rows`` (n, k) with ``weights`` cut to ``largest``."""
    n, size = rows.shape
    kept = np.maximum(within(weights, largest), 0.0)[:, None]
    pieces = ((rows[own], kept[own]) for own in arithmetic.blocks(n))
    packed = packed_triangle(arithmetic.summed((x * weight).T @ x for x, weight in pieces))
    sensitivity = information_sensitivity(largest, reach)
    receipt = door.pay(noise, FullBatch(n), sensitivity, 1, len(packed))
    return Information(unpacked_triangle(receipt.release(packed), size), receipt.std, reach)


def release_squares(residuals: Array, cut: float, door: PrepaidDoor, noise: Gaussian) -> float:
    """Release the sum of squares of residuals, each cut to ``cut``."""
    n = len(residuals)
    receipt = door.pay(noise, FullBatch(n), square_sensitivity(cut), 1, 1)
    squares = arithmetic.squares(within(residuals, cut))
    return float(receipt.release(arithmetic.sum_rows(squares[:, None]))[0])


_FARTHEST = 1e100  # its square is finite

FARTHER = 4.0
"""Rows vote if the squares of d features add up to at most d + FARTHER sqrt(d): all but one or two
per cent of normal ones."""


@dataclass(frozen=True)
class Ball:
    """Ball of the rows that vote: about a private centre, in units of a private spread."""

    middle: Array
    half: Array
    radius: float

    def nearest(self, table: Array) -> Array:
        """Draw rows towards the centre until they are inside. Nothing was learnt about those
        outside, and a log link would exponentiate the distance."""
        away = np.clip(table - self.middle, -_FARTHEST, _FARTHEST)
        lengths = arithmetic.row_norms(away / self.half)
        shrink = self.radius / np.maximum(lengths, self.radius)
        return np.asarray(self.middle + shrink[:, None] * away)


class ScoreRows:
    """Features about a private centre in units of a private spread, and an intercept.

    Rows outside the bounds, or farther from the centre than nearly all would be, are zero.
    """

    @arithmetic.quiet
    def __init__(self, table: Array, found: list[Distribution], known: Array | None) -> None:
        n, features = table.shape
        centred = [_centre_and_spread(each) for each in found]
        self.middle, self.half = (np.array(each) for each in zip(*centred, strict=True))
        square = features + FARTHER * math.sqrt(features)
        self.reach = math.sqrt(square + 1)
        scaled = (table - self.middle) / self.half
        inside = arithmetic.row_norms(scaled) <= math.sqrt(square)
        if known is not None:
            low = np.where(np.isnan(known[:features, 0]), -np.inf, known[:features, 0])
            high = np.where(np.isnan(known[:features, 1]), np.inf, known[:features, 1])
            inside &= ((table >= low) & (table <= high)).all(axis=1)
        self.values = np.where(inside[:, None], np.c_[scaled, np.ones(n)], 0.0)
        self.inside = inside
        self.ball = Ball(self.middle, self.half, math.sqrt(square))

    def pay(self, door: PrepaidDoor, noise: Gaussian, cut: float, steps: int) -> Receipt:
        """Pay for ``steps`` sums of `score`."""
        proof = "rows of known length times residuals that are cut"
        sensitivity = Sensitivity.per_sample(cut * self.reach, proof)
        n, size = self.values.shape
        return door.pay(noise, FullBatch(n), sensitivity, steps, size)

    def score(self, residuals: Array, cut: float) -> Array:
        """Return sum_i r_i (u_i, 1), with residuals that are no numbers taken for 0."""
        kept = within(residuals, cut)
        own = arithmetic.blocks(len(kept))
        return arithmetic.summed(self.values[piece].T @ kept[piece] for piece in own)

    def in_units(self, theta: Array, covariance: Array) -> tuple[Array, Array]:
        """Return parameters and covariance for features as they came, intercept last."""
        turn = np.diag(np.append(1 / self.half, 1.0))
        turn[-1, :-1] = -self.middle / self.half
        spread = turn @ covariance @ turn.T
        spread[np.diag_indices(len(self.half))] += np.where(np.isinf(self.half), np.inf, 0.0)
        return turn @ theta, spread


def _centre_and_spread(found: Distribution) -> tuple[float, float]:
    """Mean and deviation; of two values, their middle and half their distance. A column that
    looks constant is infinitely narrow for nobody: its spread is infinite, its coefficient 0."""
    width, size = found.high - found.low, max(abs(found.low), abs(found.high))
    if width <= 1e-6 or (np.count_nonzero(found.mass) == 1 and width <= 0.1 * size):
        return (found.low + found.high) / 2, math.inf
    cells = (found.edges[1:] + found.edges[:-1]) / 2
    below, above = cells < found.low + width / 10, cells > found.high - width / 10
    if found.mass[below | above].sum() > 0.98:
        return (found.low + found.high) / 2, width / 2
    mean = float(found.mass @ cells)
    spread = math.sqrt(float(found.mass @ (cells - mean) ** 2))
    return mean, max(spread, width / 20)
