"""Coarse ranges of all columns, for tables so small that histograms drown in noise.

    round 1   counts on the public signed grid, both signs added up: the shortest run of magnitudes
              with nearly all rows
    round 2   counts in two cells of that run on either side of zero, in equal ratios; the mean of
              their places is the logarithm of a typical magnitude, m
    range     m/3 to 3m if nearly all rows have one sign; else -4m to 4m

The second round is not read cell by cell, for no cell stands out of the noise; the mean over the
rows of a place between -1 and 1 has about the noise of one count, and is known where n is some
hundreds. Ranges by their middle alone are blunt (a column that varies by a tenth fills a twentieth
of its range), and serve where the alternative is to guess.

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

from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.grid import RATIO, signed_log_grid
from winsor.tables.ranges.zoom import Counted, Zoom

Array = NDArray[np.float64]

CELLS = 2
"""Cells of the second round on either side of zero."""
STANDARD = (-4.0, 4.0)
"""Taken for the range of a column where rows are too few to learn it: standardised, that is."""
ONE_SIGN, BOTH_SIGNS = 3.0, 4.0
"""How far a range reaches, in typical magnitudes."""
_FEW = 0.25  # a share of rows below which a sign is not there


@dataclass(frozen=True)
class Coarse(Zoom):
    """A plan for two joint histograms of ``columns`` columns. Indicators are not looked for."""

    rounds: int = 2

    def release_counts(
        self,
        counted: Counted,
        n: int,
        door: PrepaidDoor,
        mechanism: Gaussian,
        start: Sequence[Array | None] | None = None,
    ) -> list[Distribution]:
        """Release as `Zoom` does, but from the public grid whatever ``start`` says."""
        edges = [signed_log_grid()] * self.columns
        edges = [
            _both_signs(_magnitudes(own, counts, std, n))
            for own, counts, std in self._round(edges, counted, n, door, mechanism)
        ]
        looked = self._round(edges, counted, n, door, mechanism)
        return [_about(own, counts / n) for own, counts, _ in looked]

    def _round(
        self, edges: list[Array], counted: Counted, n: int, door: PrepaidDoor, mechanism: Gaussian
    ) -> list[tuple[Array, Array, float]]:
        """(edges, counts, noise of a count) of every column."""
        width = max(map(len, edges)) + 1
        receipt = door.pay(mechanism, FullBatch(n), self.sensitivity, 1, (self.columns, width))
        counts = receipt.release(counted(edges, width))
        pairs = zip(edges, counts, strict=True)
        return [(own, row[: len(own) + 1], receipt.std) for own, row in pairs]


def _magnitudes(edges: Array, counts: Array, std: float, n: int) -> Array:
    """Edges of `CELLS` cells of equal ratios where the sizes of nearly all rows are; ``edges`` are
    symmetric about zero."""
    sizes = edges[edges > 0]
    inner = counts[1:-1]
    folded = (inner + inner[::-1])[len(inner) // 2 :]  # the cell that holds zero, then outwards
    folded[0] /= 2
    run = Distribution.of(np.append(0.0, sizes), np.r_[0.0, folded, 0.0], math.sqrt(2) * std, n)
    low, high = max(run.low, float(sizes[0]) / RATIO), run.high
    return np.geomspace(low, high, CELLS + 1)


def _both_signs(sizes: Array) -> Array:
    return np.concatenate([-sizes[::-1], sizes])


def _about(edges: Array, shares: Array) -> Distribution:
    """A range about the typical magnitude; ``shares`` are noisy, of rows below, between and above
    ``edges``. Rows beyond the run are few, and count for their sign alone."""
    logs = np.log(edges[CELLS + 1 :])
    middle = float(logs[0] + logs[-1]) / 2
    places = (logs[1:] + logs[:-1]) / 2 - middle
    negative, positive = shares[1 : CELLS + 1][::-1], shares[CELLS + 2 : -1]
    away = float((negative + positive) @ places + shares[CELLS + 1] * (logs[0] - middle))
    typical = math.exp(min(max(middle + away, float(logs[0])), float(logs[-1])))
    if shares[: CELLS + 1].sum() < _FEW:
        return _even(typical / ONE_SIGN, typical, ONE_SIGN * typical)
    if shares[CELLS + 2 :].sum() < _FEW:
        return _even(-ONE_SIGN * typical, -typical, -typical / ONE_SIGN)
    return _even(-BOTH_SIGNS * typical, 0.0, BOTH_SIGNS * typical)


def _even(low: float, middle: float, high: float) -> Distribution:
    return Distribution(np.array([low, middle, high]), np.array([0.5, 0.5]))


def anywhere(low: float, high: float, middle: float | None = None) -> Distribution:
    """Return all that bounds say; or half of the rows on either side of a ``middle`` well
    inside."""
    room = 0.05 * (high - low)
    middle = (low + high) / 2 if middle is None else min(max(middle, low + room), high - room)
    return _even(low, middle, high)
