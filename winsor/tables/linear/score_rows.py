"""Rows of known length, and the sums over them that generalised linear models release.

Guarantee
---------
A row is (u, 1) with |(u, 1)| <= reach, or zero, whatever it holds: its term of a score, a residual
cut at c times the row, is no longer than c reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.linear.information import ROUNDING
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]

_FARTHEST = 1e100  # its square is finite

FARTHER = 4.0
"""Rows vote if the squares of d features add up to at most d + FARTHER sqrt(d): all but one or two
per cent of normal ones."""


@dataclass(frozen=True)
class Ball:
    """Where rows vote: about a private centre, in units of a private spread."""

    middle: Array
    half: Array
    radius: float

    def nearest(self, table: Array) -> Array:
        """Rows drawn towards the centre until they are inside. Nothing was learnt about those
        outside, and a log link would exponentiate the distance."""
        away = np.clip(table - self.middle, -_FARTHEST, _FARTHEST)
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(away / self.half, axis=1)
        shrink = np.minimum(1.0, self.radius / np.maximum(lengths, self.radius))
        return np.asarray(self.middle + shrink[:, None] * away)


class ScoreRows:
    """Features about a private centre in units of a private spread, and an intercept.

    Rows outside the bounds, or farther from the centre than nearly all would be, are zero.
    """

    def __init__(self, table: Array, found: list[Distribution], known: Array | None) -> None:
        n, features = table.shape
        centred = [_centre_and_spread(each) for each in found]
        self.middle, self.half = (np.array(each) for each in zip(*centred, strict=True))
        square = features + FARTHER * math.sqrt(features)
        self.reach = math.sqrt(square + 1)
        with np.errstate(over="ignore"):
            scaled = (table - self.middle) / self.half
            inside = np.einsum("ij,ij->i", scaled, scaled) <= square
        if known is not None:
            low = np.where(np.isnan(known[:features, 0]), -np.inf, known[:features, 0])
            high = np.where(np.isnan(known[:features, 1]), np.inf, known[:features, 1])
            inside &= ((table >= low) & (table <= high)).all(axis=1)
        self.values = np.where(inside[:, None], np.c_[scaled, np.ones(n)], 0.0)
        self.inside = inside
        self.ball = Ball(self.middle, self.half, math.sqrt(square))

    def pay(self, door: PrepaidDoor, noise: Gaussian, cut: float, steps: int) -> Receipt:
        """For ``steps`` sums of `score`."""
        proof = "rows of known length times residuals that are cut"
        sensitivity = Sensitivity.per_sample(cut * self.reach * ROUNDING, proof)
        n, size = self.values.shape
        return door.pay(noise, FullBatch(n), sensitivity, steps, size)

    def score(self, residuals: Array, cut: float) -> Array:
        """sum_i r_i (u_i, 1), with residuals that are no numbers taken for 0."""
        return self.values.T @ np.clip(np.nan_to_num(residuals, nan=0.0), -cut, cut)

    def in_units(self, theta: Array, covariance: Array) -> tuple[Array, Array]:
        """Parameters and covariance for features as they came, intercept last."""
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
