"""Accuracy and the confusion matrix: rows counted by what they are and what they were called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from winsor.metrics.metric import (
    Array,
    Columns,
    Estimate,
    Metric,
    Size,
    around,
    cells_of,
    deviations,
    tally,
    unknown,
)
from winsor.planning.cells import key


class Accuracy(Metric):
    """The share of rows whose prediction is their target.

    A row adds +1/2 if right and -1/2 if wrong: it moves the sum by 1/2, half of what a count would.
    The interval is Wilson's with the noise added to the variance: all p that the noisy share does
    not contradict.
    """

    asks_for_size = True
    width = 1
    bound = 0.5
    proof = "a row adds 1/2 or -1/2 to the number of right answers"

    def total(self, columns: Columns) -> Array:
        """Return the sum of all rows' contributions."""
        guesses, truth = columns.need("predictions"), columns.need("targets")
        right = np.asarray(guesses == truth)
        if object in (guesses.dtype, truth.dtype):
            both = zip(map(key, guesses.tolist()), map(key, truth.tolist()), strict=True)
            right = np.array([one is not None and one == two for one, two in both])
        return np.array([np.count_nonzero(right) - columns.n / 2])

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
        """Read a noisy total."""
        if not size.known:
            return unknown(0.0, 1.0, level)
        n, lead = size.count, float(total[0]) / size.count
        noise = (std**2 + lead**2 * size.std**2) / n**2
        return share_interval(0.5 + lead, n, noise, level)


def share_interval(share: float, n: float, noise: float, level: float) -> Estimate:
    """Return all p with (share - p)^2 <= z^2 (p (1-p)/n + noise), ``noise`` a variance."""
    z2 = deviations(level) ** 2
    a, half_b = 1 + z2 / n, share + z2 / (2 * n)
    root = math.sqrt(max(0.0, half_b**2 - a * (share**2 - z2 * noise)))
    low, high = (half_b - root) / a, (half_b + root) / a
    value, low, high = (min(1.0, max(0.0, x)) for x in (share, low, high))
    return Estimate(value, low, high, level)


class ConfusionMatrix(Metric):
    """Counts of (target, prediction) over a public list of classes.

    ``value`` is the matrix of counts, rows are targets. ``details`` has ``accuracy`` and, for every
    class, ``recall`` and ``precision`` as arrays, all from the same release.
    """

    asks_for_size = False
    bound = 1.0
    replace = math.sqrt(2)
    proof = "a row is in at most one cell of the confusion matrix"

    def __init__(self, classes: Sequence[Any]) -> None:
        self.classes = list(classes)

    @property
    def width(self) -> int:
        """Length of the sum."""
        return len(self.classes) ** 2

    def total(self, columns: Columns) -> Array:
        """Return the sum of all rows' contributions."""
        count = len(self.classes)
        true = cells_of(columns.need("targets"), self.classes)
        named = cells_of(columns.need("predictions"), self.classes)
        cells = np.where((true >= 0) & (named >= 0), true * count + named, -1)
        return tally(cells, count**2)

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
        """Read a noisy total."""
        count = len(self.classes)
        cells = total.reshape(count, count)
        everything = max(1.0, float(cells.sum()))
        shares = np.clip(cells / everything, 0, 1)
        spread = np.sqrt(std**2 + everything * shares * (1 - shares))
        matrix = around(cells, spread, level, least=0.0)
        diagonal = np.diag(cells)
        details = {
            "accuracy": ratio(diagonal.sum(), cells.sum(), count, count**2, std, level),
            "recall": _ratios(diagonal, cells.sum(axis=1), count, std, level),
            "precision": _ratios(diagonal, cells.sum(axis=0), count, std, level),
        }
        return Estimate(matrix.value, matrix.low, matrix.high, level, details)


def ratio(part: float, whole: float, inside: int, cells: int, std: float, level: float) -> Estimate:
    """Return part/whole, where ``inside`` of the ``cells`` noisy cells of the whole make up the
    part."""
    size = Size(float(whole), std * math.sqrt(cells))
    if not size.known:
        return unknown(0.0, 1.0, level)
    share = float(part) / size.count
    # d(part/whole): cells of the part move it by (1 - share)/whole, the others by -share/whole.
    noise = (std / size.count) ** 2 * (inside * (1 - share) ** 2 + (cells - inside) * share**2)
    return share_interval(share, size.count, noise, level)


def _ratios(parts: Array, wholes: Array, cells: int, std: float, level: float) -> Estimate:
    found = [ratio(p, w, 1, cells, std, level) for p, w in zip(parts, wholes, strict=True)]
    value, low, high = (
        np.array([getattr(one, name) for one in found]) for name in ("value", "low", "high")
    )
    return Estimate(value, low, high, level)
