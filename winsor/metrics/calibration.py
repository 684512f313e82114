"""Calibration: whether events of predicted probability p happen with frequency p, bin by bin.

A row in bin b adds (1/2, target - probability) to that bin, a vector of norm at most sqrt(5)/2. The
first entry counts rows at half weight: the gaps are what the interval is about.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from winsor.core.checks import whole
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
)

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
    bound = math.sqrt(1 + _COUNT**2)
    proof = "a row is in one bin, with a gap between -1 and 1"

    def __init__(self, bins: int = 10, positive_class: Any = 1) -> None:
        self.bins = whole("bins", bins, 1)
        self.positive_class = positive_class

    @property
    def width(self) -> int:
        return 2 * self.bins

    def total(self, columns: Columns) -> Array:
        chances = columns.numbers("scores", 0.0, 1.0, odd=0.5)
        cells = bins_of(chances, 0.0, 1.0, self.bins)
        happened = columns.need("targets") == self.positive_class
        gaps = np.bincount(cells, weights=happened - chances, minlength=self.bins)
        return np.concatenate([_COUNT * tally(cells, self.bins), gaps])

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
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
