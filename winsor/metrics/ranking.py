"""The area under the ROC curve, from a histogram of scores for each class.

The score is rounded to public bins first, so what is measured is the area of the rounded score
(ties count one half). ``details["largest effect of rounding"]`` bounds its distance from the area
of the score itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from winsor.core.checks import positive, whole
from winsor.metrics.metric import (
    Array,
    Columns,
    Estimate,
    Metric,
    Size,
    around,
    bins_of,
    tally,
    unknown,
)


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
        return 2 * self.bins

    def total(self, columns: Columns) -> Array:
        scores = columns.numbers("scores", self.low, self.high, odd=self.low)
        cells = bins_of(scores, self.low, self.high, self.bins)
        is_positive = columns.need("targets") == self.positive_class
        return tally(cells + self.bins * is_positive, self.width)

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
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
