"""Quantiles of residuals (or of any column of numbers) from a histogram on a public range.

The number of rows is public, so the noisy histogram is first made to add up to it: the noise of the
distribution function after b of B bins then has variance b (1 - b/B) s^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from winsor.core.checks import positive, probability, whole
from winsor.core.contract import ConfigurationError
from winsor.metrics.metric import Array, Columns, Estimate, Metric, Size, bins_of, deviations, tally


class Quantiles(Metric):
    """Quantiles at ``levels`` of target - prediction, inside the public range [low, high].

    ``absolute=True`` takes absolute residuals. Values outside the range are counted at its ends.
    """

    asks_for_size = True
    bound = 1.0
    replace = math.sqrt(2)
    proof = "a row is in one bin of the histogram of residuals"

    def __init__(
        self,
        levels: Sequence[float],
        low: float,
        high: float,
        bins: int = 64,
        absolute: bool = False,
    ) -> None:
        self.levels = [probability("levels", level) for level in levels]
        if not self.levels:
            raise ConfigurationError("levels must name at least one quantile. Got none instead.")
        positive("high - low", high - low)
        self.low, self.high, self.absolute = float(low), float(high), bool(absolute)
        self.bins = whole("bins", bins, 2)

    @property
    def width(self) -> int:
        return self.bins

    def total(self, columns: Columns) -> Array:
        largest = np.finfo(np.float64).max / 4
        targets = columns.numbers("targets", -largest, largest, odd=0.0)
        residuals = targets - columns.numbers("predictions", -largest, largest, odd=0.0)
        if self.absolute:
            residuals = np.abs(residuals)
        residuals = np.clip(residuals, self.low, self.high)
        return tally(bins_of(residuals, self.low, self.high, self.bins), self.bins)

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
        n = max(1.0, size.count)
        cells = total + (n - total.sum()) / self.bins
        reached = np.concatenate([[0.0], np.cumsum(cells)]) / n
        b = np.arange(self.bins + 1)
        # A noisy count of rows moves the correction, and with it the whole curve, a little.
        noise = b * (1 - b / self.bins) * std**2 + (b / self.bins - reached) ** 2 * size.std**2
        found = [self._quantile(q, reached, noise / n**2, n, level) for q in self.levels]
        value, low, high = (np.array(column) for column in zip(*found, strict=True))
        return Estimate(value, low, high, level)

    def _quantile(
        self, q: float, reached: Array, noise: Array, n: float, level: float
    ) -> tuple[float, float, float]:
        edges = np.linspace(self.low, self.high, self.bins + 1)
        rising = np.clip(np.maximum.accumulate(reached), 0.0, 1.0)
        rising[-1] = 1.0
        value = float(np.interp(q, rising, edges))
        margin = deviations(level) * np.sqrt(q * (1 - q) / n + noise)
        margin[[0, -1]] = 0.0  # all rows are inside the range: F is 0 and 1 at its ends
        # A bin is kept if the quantile may lie in it: not surely above its end or below its start.
        kept = (reached[:-1] - margin[:-1] <= q) & (q <= reached[1:] + margin[1:])
        if not kept.any():
            return value, self.low, self.high
        first, last = np.flatnonzero(kept)[[0, -1]]
        low, high = float(edges[first]), float(edges[last + 1])
        return min(max(value, low), high), low, high
