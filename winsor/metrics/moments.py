"""Metrics that are smooth functions of a few means: loss, R2, explained deviance.

A row is a short vector x with |x| <= 1. Two sums leave: that of x, and that of x x^T at a quarter
of its size. The second says how much the rows differ, hence how wide the interval must be, and
costs 3 % more noise: |(x, x x^T / 4)| <= sqrt(1 + 1/16).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from winsor.core.arithmetic.rows import blocks, clip_rows, squares, sum_rows, summed
from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError
from winsor.metrics.metric import Array, Columns, Estimate, Metric, Size, around, cells_of, unknown

_SECOND = 0.25  # weight of the second moments


class Moments(Metric):
    """A function of the mean of x, with the interval of the delta method."""

    asks_for_size = True
    bound = math.hypot(1, _SECOND)
    dimension: int
    range: tuple[float, float] = (-np.inf, np.inf)

    @property
    def width(self) -> int:
        """Length of the sum."""
        return self.dimension + self.dimension * (self.dimension + 1) // 2

    @abstractmethod
    def vectors(self, columns: Columns) -> Array:
        """Return (n, dimension) rows of norm at most 1."""

    @abstractmethod
    def functions(self) -> dict[str, Callable[[Array], float]]:
        """Return functions of the mean vector; the first is the metric's value."""

    def total(self, columns: Columns) -> Array:
        """Return the sum of all rows' contributions."""
        x = clip_rows(self.vectors(columns), 1.0)
        first, second = sum_rows(x), summed(x[own].T @ x[own] for own in blocks(len(x)))
        rows, cols = np.triu_indices(self.dimension)
        # Off the diagonal an entry stands for two: sqrt(2) keeps the norm of the whole matrix.
        weights = np.where(rows == cols, 1.0, math.sqrt(2))
        return np.concatenate([first, _SECOND * weights * second[rows, cols]])

    def read(self, total: Array, std: float, size: Size, level: float) -> Estimate:
        """Read a noisy total."""
        if not size.known:
            return unknown(*self.range, level)
        d, n = self.dimension, size.count
        mean = total[:d] / n
        covariance = self._covariance(total[d:], mean, std, n)
        found = {
            name: self._at(function, mean, covariance, std, size, level)
            for name, function in self.functions().items()
        }
        first, *others = found
        value = found[first]
        details = {name: found[name] for name in others}
        return Estimate(value.value, value.low, value.high, level, details)

    def _covariance(self, second: Array, mean: Array, std: float, n: float) -> Array:
        """Covariance of one row, projected to be positive and raised by the release's noise."""
        rows, cols = np.triu_indices(self.dimension)
        weights = np.where(rows == cols, 1.0, math.sqrt(2))
        matrix = np.zeros((self.dimension, self.dimension))
        matrix[rows, cols] = matrix[cols, rows] = second / (_SECOND * weights * n)
        values, vectors = np.linalg.eigh(matrix - np.outer(mean, mean))
        raised = np.clip(values, 0.0, 1.0) + std / (_SECOND * n)
        return np.asarray((vectors * raised) @ vectors.T, float)

    def _at(
        self,
        function: Callable[[Array], float],
        mean: Array,
        covariance: Array,
        std: float,
        size: Size,
        level: float,
    ) -> Estimate:
        value, slope = function(mean), _gradient(function, mean)
        # Means are sums over a count: the noise of a noisy count moves all of them together.
        noise = float(slope @ slope) * std**2 + float(slope @ mean) ** 2 * size.std**2
        variance = float(slope @ covariance @ slope) / size.count + noise / size.count**2
        estimate: Estimate = around(value, math.sqrt(variance), level, *self.range)
        return estimate


def _gradient(function: Callable[[Array], float], at: Array) -> Array:
    steps = 1e-6 * np.eye(at.size)
    return np.array([(function(at + h) - function(at - h)) / 2e-6 for h in steps])


class ClippedLoss(Moments):
    """The mean of min(loss, bound). What is clipped away is not seen: state it with the bound."""

    dimension = 1
    proof = "losses are clipped to [0, bound] row by row; second moments are those of the same rows"

    def __init__(self, bound: float) -> None:
        self.most = positive("bound", bound)
        self.range = (0.0, self.most)

    def vectors(self, columns: Columns) -> Array:
        """Return (n, dimension) rows of norm at most 1."""
        losses = columns.numbers("losses", 0.0, self.most, odd=self.most)
        return 2 * (losses[:, None] / self.most) - 1

    def functions(self) -> dict[str, Callable[[Array], float]]:
        """Return functions of the mean vector; the first is the value."""
        return {"loss": lambda mean: self.most * (1 + float(mean[0])) / 2}


class R2(Moments):
    """1 - mean squared residual / variance of the target, targets in a public range.

    Targets and predictions are clipped to [low, high], residuals to ``residual_bound`` (default the
    whole range; a smaller one gives less noise). ``details`` has ``mean squared error``.
    """

    dimension = 3
    range = (-np.inf, 1.0)
    proof = "targets, predictions and residuals are clipped to public ranges row by row"

    def __init__(self, low: float, high: float, residual_bound: float | None = None) -> None:
        self.half = positive("high - low", high - low) / 2
        self.centre = (low + high) / 2
        widest = 2 * self.half
        self.residual_bound = (
            widest if residual_bound is None else positive("residual_bound", residual_bound)
        )

    def vectors(self, columns: Columns) -> Array:
        """Return (n, dimension) rows of norm at most 1."""
        low, high = self.centre - self.half, self.centre + self.half
        targets = columns.numbers("targets", low, high, odd=self.centre)
        guesses = columns.numbers("predictions", low, high, odd=self.centre)
        residual = np.minimum(np.abs(targets - guesses) / self.residual_bound, 1.0)
        u = (targets - self.centre) / self.half
        columns_of = [2 * squares(residual) - 1, u, 2 * squares(u) - 1]
        return np.stack(columns_of, axis=1) / math.sqrt(3)

    def functions(self) -> dict[str, Callable[[Array], float]]:
        """Return functions of the mean vector; the first is the value."""

        def share(mean: Array) -> float:
            return (1 + math.sqrt(3) * float(mean[0])) / 2

        def error(mean: Array) -> float:
            return self.residual_bound**2 * share(mean)

        def explained(mean: Array) -> float:
            square = (1 + math.sqrt(3) * float(mean[2])) / 2
            variance = square - 3 * float(mean[1]) ** 2  # in units of half the range
            unexplained = (self.residual_bound / self.half) ** 2 * share(mean)
            return 1 - unexplained / max(variance, 1e-6)

        return {"r2": explained, "mean squared error": error}


class DevianceExplained(Moments):
    """1 - mean log loss / entropy of the classes: how much better than knowing the class shares.

    ``losses`` are log losses (natural logarithm) and are clipped to ``bound``.
    """

    range = (-np.inf, 1.0)
    proof = "log losses are clipped to [0, bound] and classes counted once, row by row"

    def __init__(self, classes: Sequence[Any], bound: float = 5.0) -> None:
        self.classes = list(classes)
        if len(self.classes) < 2:
            raise ConfigurationError(
                f"classes must name at least two. Got {self.classes!r} instead."
            )
        self.most = positive("bound", bound)
        self.dimension = 1 + len(self.classes)

    def vectors(self, columns: Columns) -> Array:
        """Return (n, dimension) rows of norm at most 1."""
        losses = columns.numbers("losses", 0.0, self.most, odd=self.most)
        cells = cells_of(columns.need("targets"), self.classes)
        one_hot = (cells[:, None] == np.arange(len(self.classes))).astype(np.float64)
        scaled = 2 * (losses[:, None] / self.most) - 1
        return np.concatenate([scaled, one_hot], axis=1) / math.sqrt(2)

    def functions(self) -> dict[str, Callable[[Array], float]]:
        """Return functions of the mean vector; the first is the value."""

        def loss(mean: Array) -> float:
            return self.most * (1 + math.sqrt(2) * float(mean[0])) / 2

        def explained(mean: Array) -> float:
            shares = np.clip(math.sqrt(2) * mean[1:], 1e-9, 1.0)
            shares = shares / shares.sum()
            entropy = float(-(shares * np.log(shares)).sum())
            return 1 - loss(mean) / max(entropy, 1e-6)

        return {"deviance explained": explained, "log loss": loss}
