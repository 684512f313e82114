"""Where the rows of every column are, roughly: for tables so small that histograms drown in noise.

    round 1   counts on the public signed grid: the shortest run of cells with nearly all rows
    round 2   counts in six cells of that run, in equal ratios; the mean of their places is the
              logarithm of a typical magnitude, m
    range     m/3 to 3m if all rows have one sign; else -4m to 4m, and rows are about zero

The second round is not read cell by cell, for no cell stands out of the noise; the mean over the
rows of a place between -1 and 1 has the noise of one count, and is known where n is a hundred.
Ranges by their middle alone are blunt (a column that varies by a tenth fills a twentieth of its
range), and serve where the alternative is to guess.

Guarantee
---------
That of `zoom.py`: both rounds are counts of cells, one per column and record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.mechanisms.gaussian import Gaussian
from winsor.ranges.distribution import Distribution
from winsor.ranges.grid import RATIO, signed_log_grid
from winsor.ranges.zoom import Counted, Zoom
from winsor.release.prepaid import PrepaidDoor
from winsor.sampling.samplers import FullBatch

Array = NDArray[np.float64]

CELLS = 6
ONE_SIGN, BOTH_SIGNS = 3.0, 4.0
"""How far a range reaches, in typical magnitudes."""
DEEPEST = RATIO**2
"""Magnitudes of a run about zero are looked at from its end down to this part of it."""


@dataclass(frozen=True)
class Coarse(Zoom):
    """A plan for two joint histograms of ``columns`` columns."""

    rounds: int = 2

    def release_counts(
        self,
        counted: Counted,
        n: int,
        door: PrepaidDoor,
        mechanism: Gaussian,
        start: Sequence[Array | None] | None = None,
    ) -> list[Distribution]:
        public = [None] * self.columns if start is None else list(start)
        edges = [signed_log_grid() if each is None else np.asarray(each) for each in public]
        found = []
        for own, row, std in self._round(edges, counted, n, door, mechanism):
            found.append(Distribution.of(own, row, std, n))
        edges = [_magnitudes(each.low, each.high) for each in found]
        return [
            _about(own, row / n) for own, row, _ in self._round(edges, counted, n, door, mechanism)
        ]

    def _round(
        self,
        edges: list[Array],
        counted: Counted,
        n: int,
        door: PrepaidDoor,
        mechanism: Gaussian,
    ) -> list[tuple[Array, Array, float]]:
        """(edges, counts, noise of a count) of every column."""
        width = max(map(len, edges)) + 1
        receipt = door.pay(mechanism, FullBatch(n), self.sensitivity, 1, (self.columns, width))
        counts = receipt.release(counted(edges, width))
        pairs = zip(edges, counts, strict=True)
        return [(own, row[: len(own) + 1], receipt.std) for own, row in pairs]


def _magnitudes(low: float, high: float) -> Array:
    """Edges of cells of equal ratios between ``low`` and ``high``, on both sides of zero if they
    are."""
    if low > 0:
        return np.geomspace(low, high, CELLS + 1)
    if high < 0:
        return -np.geomspace(-low, -high, CELLS + 1)
    far = max(high, -low)
    sizes = np.geomspace(far / DEEPEST, far, CELLS // 2 + 1)
    return np.concatenate([-sizes[::-1], sizes])


def _about(edges: Array, shares: Array) -> Distribution:
    """A range about the typical magnitude; ``shares`` are noisy, of rows below, between and above
    ``edges``."""
    sizes = np.abs(edges)
    ends = math.log(float(sizes.min())), math.log(float(sizes.max()))
    middles = np.log(np.sqrt(sizes[1:] * sizes[:-1]))
    signs = edges[0] < 0 < edges[-1]
    if signs:
        middles[len(middles) // 2] = ends[0]  # the cell that holds zero
    outer = np.log(sizes[[0, -1]])
    places = np.concatenate([outer[:1], middles, outer[1:]]) - np.mean(ends)
    typical = math.exp(float(np.clip(np.mean(ends) + shares @ places, *ends)))
    if signs:
        return _even(-BOTH_SIGNS * typical, 0.0, BOTH_SIGNS * typical)
    if edges[-1] < 0:
        return _even(-ONE_SIGN * typical, -typical, -typical / ONE_SIGN)
    return _even(typical / ONE_SIGN, typical, ONE_SIGN * typical)


def _even(low: float, middle: float, high: float) -> Distribution:
    return Distribution(np.array([low, middle, high]), np.array([0.5, 0.5]))


_MOST_NOISE = 0.2


def enough(n: int, columns: int, share: float, mu: float) -> bool:
    """Whether ``n`` rows stand out of the noise, a function of public values: a run of cells by
    four deviations or more. ``mu`` is that of the one release that would spend the budget."""
    return math.sqrt(2 * columns / share) / (mu * n) < _MOST_NOISE


def share_of_ranges(least: float, n: int, columns: int, mu: float) -> float | None:
    """The share at which a count's noise in three rounds is about a hundredth of the rows, between
    ``least`` and three times that; None if it would still be a twentieth: too few rows for
    histograms. A function of public values."""
    noise = math.sqrt(3 * columns) / (mu * n)  # at a share of 1
    share = min(max((noise / 0.01) ** 2, least), 3 * least)
    return None if noise / math.sqrt(share) > 0.05 else share
