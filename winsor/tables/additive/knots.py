"""Knots of a shape function, from a released distribution, and the tents between them.

    tent_k(x)   1 at knot k, 0 at its neighbours, linear between: a row has two of them, w and 1 - w
    knots      quantiles of equal mass; a value that many rows share is one knot

Everything here is post-processing of what `winsor.tables.ranges` released, but for `Tents`, which
reads one row at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.arithmetic.rows import sum_weights
from winsor.tables.inputs import within
from winsor.tables.ranges.distribution import Distribution, range_of_means

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_ONE_VALUE = 0.1  # cells narrower than this share of the middle of a column are one value
_HEAVY = 1.5  # ... if they hold this many times the mass of a knot
_LONGEST_END = 4.0  # in gaps of the neighbour: an exponential tail's 99.5 % quantile is 3.6 away
_CLOSEST = 0.01  # knots closer than this share of the middle of a column are one


def knots_of(found: Distribution, count: int) -> Array:
    """Return at most ``count`` knots, ascending; a single one if the column looks constant.

    >>> even = Distribution(np.linspace(0, 1, 33), np.full(32, 1 / 32))
    >>> knots_of(even, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if found.indicator:
        return np.array([0.0, 1.0])
    width, size = found.high - found.low, max(abs(found.low), abs(found.high))
    if width <= 1e-6 or (np.count_nonzero(found.mass) == 1 and width <= _ONE_VALUE * size):
        return np.array([(found.low + found.high) / 2])
    knots = cut_ends(found.quantile(np.linspace(0.0, 1.0, max(count, 2))))
    tenth = len(knots) // 10
    middle = knots[len(knots) - 1 - tenth] - knots[tenth]
    middle = middle if middle > 0 else found.high - found.low
    for cell in np.flatnonzero(found.mass > _HEAVY / count):
        left, right = found.edges[cell], found.edges[cell + 1]
        others = found.high - found.low > right - left  # or it is all there is
        if others and (right - left < _ONE_VALUE * middle or found.mass[cell] > 0.8):
            knots = np.append(knots[(knots < left) | (knots > right)], (left + right) / 2)
    return _apart(np.sort(knots), _CLOSEST * middle)


def cut_ends(knots: Array) -> Array:
    """Bring outermost knots nearer that a long empty cell pushed away."""
    if len(knots) > 3:
        last, first = knots[-2] - knots[-3], knots[2] - knots[1]
        if last > 0:
            knots[-1] = min(knots[-1], knots[-2] + _LONGEST_END * last)
        if first > 0:
            knots[0] = max(knots[0], knots[1] - _LONGEST_END * first)
    return knots


def _apart(knots: Array, gap: float) -> Array:
    kept = [float(knots[0])]
    for knot in knots[1:].tolist():
        if knot - kept[-1] > gap:
            kept.append(knot)
    return np.array(kept)


@dataclass(frozen=True)
class Tents:
    """Piecewise linear functions on at least two ``knots``; rows outside count at the ends."""

    knots: Array

    def places(self, column: Array) -> tuple[Indices, Array]:
        """Return (k, w) of every row: tent k has the value 1 - w, tent k + 1 the value w."""
        inside = np.clip(column, self.knots[0], self.knots[-1])
        left = np.searchsorted(self.knots, inside, side="right") - 1
        left = np.clip(left, 0, len(self.knots) - 2).astype(np.int64)
        start, width = self.knots[left], np.diff(self.knots)[left]
        return left, np.maximum(within((inside - start) / width), 0.0)

    def sums(self, column: Array) -> tuple[Array, Array]:
        """Return the sums over the rows of every tent, and of the product of each with the next."""
        left, weight = self.places(column)
        size = len(self.knots)
        counts = sum_weights(left, 1 - weight, size) + sum_weights(left + 1, weight, size)
        return counts, sum_weights(left, weight * (1 - weight), size - 1)


ROOM = 0.1
"""How far beyond the released range of a target predictions may lie, as a share of its width."""


@dataclass(frozen=True)
class Units:
    """Targets count as (y - centre) / scale inside; few exceed ``high`` there."""

    centre: float
    scale: float
    high: float
    ends: tuple[float, float]
    """Predictions stay between these: no mean lies beyond what it is the mean of."""


def units_of(found: list[Distribution], linked: bool) -> Units:
    """Return median and spread; for a log link, zero and the mean per exposure (the second of
    ``found``, if there is one)."""
    y = found[0]
    if not linked:
        q05, q16, middle, q84, q95 = y.quantile([0.05, 0.16, 0.5, 0.84, 0.95])
        spread = max((q84 - q16) / 2, (q95 - q05) / 3.3, (y.high - y.low) / 100, 1e-60)
        ends = y.low - ROOM * (y.high - y.low), y.high + ROOM * (y.high - y.low)
        high = (y.high - float(middle)) / float(spread)
        return Units(float(middle), float(spread), high, ends)
    mean, exposure = _mean(y), found[1] if len(found) > 1 else None
    if exposure is not None:
        mean /= _mean(exposure)
    ends = range_of_means(y, exposure, mean)
    return Units(0.0, mean, float(y.quantile(0.999)) / mean, ends)


def _mean(found: Distribution) -> float:
    """Mean of a positive column, without the long empty ends of outer cells."""
    values = cut_ends(found.quantile(np.linspace(0.0, 1.0, 65)))
    return max(float(np.mean((values[1:] + values[:-1]) / 2)), 1e-60)
