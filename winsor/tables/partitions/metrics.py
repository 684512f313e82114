"""Metrics of rows in partitions: contributions of each partition, one release on the driver.

Guarantee
---------
That of `winsor.metrics.measuring`: a metric is a sum of bounded contributions of single rows.
What partitions send to the driver is not noised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.metrics.measuring import Measurement, Terms, measure_sums, totals_of
from winsor.metrics.metric import Columns, Metric
from winsor.tables.partitions.source import Partitions

Array = NDArray[np.float64]
Judged = Callable[[Array], Mapping[str, ArrayLike]]


@dataclass(frozen=True)
class Totals:
    """The sums of all metrics over some rows."""

    metrics: Mapping[str, Metric]
    judged: Judged

    def __call__(self, rows: Array) -> Array:
        return totals_of(self.metrics, Columns.of(**self.judged(rows)))


def measure(
    metrics: Metric | Mapping[str, Metric],
    partitions: Partitions,
    judged: Judged,
    **terms: Unpack[Terms],
) -> Measurement:
    """`winsor.metrics.measure` on rows in partitions.

    ``judged`` gets the rows of a partition and returns their ``targets``, ``predictions``,
    ``scores``, ``losses`` or ``groups`` by name, each row by itself: with a model, it predicts
    where the rows are. ``terms`` are those of `winsor.metrics.measure`. One pass.

    Examples
    --------
    >>> from winsor.metrics import Accuracy
    >>> rows = Partitions.of_loaders([lambda: np.arange(10_000.0)[:, None] % 2], columns=1)
    >>> judged = lambda rows: {"targets": rows[:, 0], "predictions": np.zeros(len(rows))}
    >>> found = measure(Accuracy(), rows, judged, epsilon=1.0, random_state=0)
    >>> bool(abs(float(found["Accuracy"]) - 0.5) < 0.02)
    True
    """
    return measure_sums(metrics, lambda named: partitions.sum(Totals(named, judged)), **terms)
