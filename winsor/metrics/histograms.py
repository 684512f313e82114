"""Metrics read from histograms on public bins: calibration, quantiles of residuals, area under ROC.

Calibration   a row in bin b adds (1/2, target - probability) to that bin, a vector of norm at
              most sqrt(5)/2. The first entry counts rows at half weight: the gaps are what the
              interval is about
Quantiles     the number of rows is public, so the noisy histogram is first made to add up to
              it: the noise of the distribution function after b of B bins then has variance
              b (1 - b/B) s^2
AUC           the score is rounded to public bins, so what is measured is the area of the
              rounded score (ties count one half). ``details["largest effect of rounding"]``
              bounds its distance from the area of the score itself
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from winsor.core.arithmetic.rows import sum_weights
from winsor.core.checks import positive, probability, whole
from winsor.core.contract import ConfigurationError
from winsor.metrics.metric import (
    Array,
    Columns,
    Estimate,
    Metric,
    Size,
    around,
    bins_of,
    deviations,
    tally,
    unknown,
)
from winsor.planning.cells import codes_among

_COUNT = 0.5


class Calibration(Metric):
    """``value``: for every bin, (observed - predicted) positives as a share of all rows.

    ``details``:

    - ``in the large``: the sum of the bins, mean target minus mean probability;
    - ``expected calibration error``: the sum of the absolute values, noise taken off; its interval
      holds with at least the stated level;
    - ``rows``: the number of rows of each bin.
    """

    asks_for_size = True
    bound = math.hypot(1, _COUNT)
    proof = "a row is in one bin, with a gap between -1 and 1"

    def __init__(self, bins: int = 10, positive_class: Any = 1) -> None:
        self.bins = whole("bins", bins, 1)
        self.positive_class = positive_class

    @property
    def width(self) -> int:
        """Length of the sum."""
        return 2 * self.bins

    def total(self, columns: Columns) -> Array:
        """Return the sum of all rows' contributions."""
        chances = columns.numbers("scores", 0.0, 1.0, odd=0.5)
        cells = bins_of(chances, 0.0, 1.0, self.bins)
        happened = codes_among(columns.need("targets"), [self.positive_class]) == 0
        gaps = sum_weights(cells, happened - chances, self.bins)
        return np.concatenate([_COUNT * tally(cells, self.bins), gaps])

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
        """Read a noisy total."""
        counts, gaps = total[: self.bins] / _COUNT, total[self.bins :]
        n = max(1.0, size.count)
        rows_differ = self._row_variance(counts, gaps) * np.maximum(counts, 0)
        spread = np.sqrt(std**2 + rows_differ + (gaps * size.std / n) ** 2)
        found = around(gaps / n, spread / n, level, -1.0, 1.0)
        large = around(
            float(gaps.sum()) / n, math.sqrt(float(spread @ spread)) / n, level, -1.0, 1.0
        )
        rows = around(counts, np.full(self.bins, std / _COUNT), level, least=0.0)
        details = {
            "in the large": large,
            "expected calibration error": self._absolute(gaps / n, spread / n, level),
            "rows": rows,
        }
        return Estimate(found.value, found.low, found.high, level, details)

    def _row_variance(self, counts: Array, gaps: Array) -> Array:
        """E[(target - probability)^2] in each bin, from the frequency that the gap implies."""
        middles = (np.arange(self.bins) + 0.5) / self.bins
        share = np.clip(middles + gaps / np.maximum(counts, 1.0), 0.0, 1.0)
        return np.asarray(share * (1 - share) + (share - middles) ** 2 + 1 / (12 * self.bins**2))

    def _absolute(self, gaps: Array, spread: Array, level: float) -> Estimate:
        without_noise = np.sqrt(np.maximum(gaps**2 - spread**2, 0.0))
        # All bins at once: each at the level that leaves the stated one for their union.
        half = deviations(1 - (1 - level) / self.bins) * spread
        low, high = np.maximum(np.abs(gaps) - half, 0).sum(), (np.abs(gaps) + half).sum()
        value = min(max(float(without_noise.sum()), float(low)), float(high))
        return Estimate(value, float(low), min(1.0, float(high)), level)


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
        """Length of the sum."""
        return self.bins

    def total(self, columns: Columns) -> Array:
        """Return the sum of all rows' contributions."""
        largest = np.finfo(np.float64).max / 4
        targets = columns.numbers("targets", -largest, largest, odd=0.0)
        residuals = targets - columns.numbers("predictions", -largest, largest, odd=0.0)
        if self.absolute:
            residuals = np.abs(residuals)
        residuals = np.clip(residuals, self.low, self.high)
        return tally(bins_of(residuals, self.low, self.high, self.bins), self.bins)

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
        """Read a noisy total."""
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


class AUC(Metric):
    """P(score of a positive row > score of a negative row) + P(equal)/2, scores in bins.

    Scores are clipped to [low, high]; a row is positive if its target equals ``positive``. More
    bins round less and add more noise.
    """

    asks_for_size = False
    bound = 1.0
    replace = math.sqrt(2)
    proof = "a row is in one cell of the histogram of scores and classes"

    def __init__(
        self, bins: int = 32, low: float = 0.0, high: float = 1.0, positive_class: Any = 1
    ) -> None:
        self.bins = whole("bins", bins, 2)
        positive("high - low", high - low)
        self.low, self.high, self.positive_class = float(low), float(high), positive_class

    @property
    def width(self) -> int:
        """Length of the sum."""
        return 2 * self.bins

    def total(self, columns: Columns) -> Array:
        """Return the sum of all rows' contributions."""
        scores = columns.numbers("scores", self.low, self.high, odd=self.low)
        cells = bins_of(scores, self.low, self.high, self.bins)
        is_positive = codes_among(columns.need("targets"), [self.positive_class]) == 0
        return tally(cells + self.bins * is_positive, self.width)

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
        """Read a noisy total."""
        negative, positive = total[: self.bins], total[self.bins :]
        sizes = [Size(float(x.sum()), std * math.sqrt(self.bins)) for x in (negative, positive)]
        if not all(one.known for one in sizes):
            return unknown(0.0, 1.0, level)
        n0, n1 = (one.count for one in sizes)
        below = (np.cumsum(negative) - negative / 2) / n0  # share of negatives below each bin
        above = (np.cumsum(positive[::-1])[::-1] - positive / 2) / n1
        area = float(above @ negative) / n0
        # d area / d cell, then multinomial sampling, noise, and noise times noise.
        slope0, slope1 = (above - area) / n0, (below - area) / n1
        counts0, counts1 = np.maximum(negative, 0), np.maximum(positive, 0)
        sampling = float(counts0 @ slope0**2 + counts1 @ slope1**2)
        noise = std**2 * float(slope0 @ slope0 + slope1 @ slope1)
        products = std**4 * (self.bins * (self.bins - 1) / 2 + self.bins / 4) / (n0 * n1) ** 2
        found = around(area, math.sqrt(sampling + noise + products), level, 0.0, 1.0)
        ties = float(counts0 @ counts1) / (2 * n0 * n1)
        rounding = Estimate(ties, 0.0, min(0.5, ties), level)
        details = {"largest effect of rounding": rounding}
        return Estimate(found.value, found.low, found.high, level, details)
