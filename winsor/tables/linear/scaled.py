"""Columns brought to [-1, 1]: by public bounds where there are any, else by released histograms.

    u = clip((x - c)/h, -1, 1)     (0, 1), (-1, 1):  c = 0, h = 1
                                   bounds (a, b):    c the middle, h half the width
                                   learnt:           c the median, h the reach of the cells

A centre near the bulk (zero, for the indicator of a rare category) keeps rows short, and the noise
of everything that is released later is in proportion to the squared length of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.tables.inputs import scaled, within
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]

TAIL = 0.002
"""Mass beyond which the ends of a learnt range are cut."""

MARGIN = 1.25
"""How much farther than it was seen a column may reach: the thin ends of a distribution drown in
the noise of a histogram, and cutting them costs more than the room does."""

_TINY = 1e-5


@dataclass(frozen=True)
class Scaling:
    """Centres and reaches of columns; ``low`` and ``high`` are where they are winsorised."""

    low: Array
    high: Array
    centre: Array

    @property
    def reach(self) -> Array:
        """Half width of each column about its centre."""
        return np.maximum(self.high - self.centre, self.centre - self.low)

    @staticmethod
    def of(bounds: Array, found: Sequence[Distribution]) -> Scaling:
        """Scale by ``bounds`` (d, 2), NaN where unknown, and by ``found`` in the order of those
        columns."""
        low, high = bounds[:, 0].copy(), bounds[:, 1].copy()
        centre = np.clip(0.0, low, high)
        centre = np.where(scaled(bounds), centre, (low + high) / 2)
        for column, each in zip(np.flatnonzero(np.isnan(low)), found, strict=True):
            low[column], high[column], centre[column] = learnt_range(each)
        return Scaling(low, high, centre)

    def within(self, bounds: Array) -> Scaling:
        """Cut the ranges to public ``bounds`` (d, 2), NaN where there are none: what a noisy look
        saw beyond them is nothing."""
        low, high = np.fmax(self.low, bounds[:, 0]), np.fmin(self.high, bounds[:, 1])
        outside = low >= high
        low, high = np.where(outside, self.low, low), np.where(outside, self.high, high)
        return Scaling(low, high, np.clip(self.centre, low, high))

    def outside(self, theta: Array, intercept: bool, centre: float) -> Array:
        """Return parameters of the raw columns for y, of those of scaled columns for y - centre."""
        if not intercept:
            return theta / column(self.reach, theta)
        weights = theta[:-1] / column(self.reach, theta[:-1])
        level = theta[-1] + centre - self.centre @ weights
        return np.concatenate([weights, np.asarray(level)[None]])

    def apply(self, table: Array) -> Array:
        """Return a new table in [-1, 1]."""
        inside = np.clip(table, self.low, self.high)
        return within((inside - self.centre) / self.reach)


def column(reach: Array, like: Array) -> Array:
    """Return ``reach`` in the shape of one output, or of several."""
    return reach[:, None] if like.ndim == 2 else reach


def learnt_range(found: Distribution) -> tuple[float, float, float]:
    """Return (low, high, centre). An indicator reaches from 0 to 1. A column that shows nothing but
    zeros is taken for a rare one: between -1 and 1, as far as anyone can see."""
    low, centre, high = found.quantile([TAIL, 0.5, 1 - TAIL]).tolist()
    if found.indicator:
        return 0.0, 1.0, float(centre > 0.5)
    if max(abs(low), abs(high)) < _TINY:
        return -1.0, 1.0, 0.0
    if abs(centre) < _TINY:
        centre = 0.0
    least = max(1e-9 * max(abs(low), abs(high)), 1e-300)
    below, above = (MARGIN * max(reach, least) for reach in (centre - low, high - centre))
    return centre - below, centre + above, centre
