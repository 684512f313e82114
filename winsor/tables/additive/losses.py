"""What is descended: for every loss its negative gradient in the score, its start, its units.

    squared, huber   y in units of a private scale about a private centre; score is the mean
    logistic         one score, or one per class (softmax)
    poisson          y >= 0, score is log mean, gradient y - mu in units of the private mean
    gamma            y > 0,  score is log mean, gradient y/mu - 1

Scores of the log links are kept within reach of the start, so that no step makes them overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from winsor.tables.linear.shrinkage import of_classes

Array = NDArray[np.float64]

FARTHEST = 12.0
"""Logarithms of means lie within this distance of the logarithm of the overall mean."""


class Loss(Protocol):
    """Scores are (n, outputs) and start at zero; ``y`` is fixed when the loss is built."""

    @property
    def outputs(self) -> int: ...

    @property
    def clip(self) -> float:
        """Residuals of the first steps are cut here."""

    @property
    def curvature(self) -> float: ...

    @property
    def means(self) -> bool:
        """Whether residuals are skewed and means are wanted: the cut must not touch the bulk."""

    def residual(self, scores: Array) -> Array: ...

    def shift(self, mean: float) -> float:
        """By how much scores move if residuals have this mean."""

    def information(self, level: Array) -> float:
        """About the second derivative of the loss, if scores are near ``level`` (outputs,)."""


@dataclass(frozen=True)
class Squared:
    """(z - y)^2 / 2 for targets in units of their spread."""

    y: Array
    clip: float = 2.0
    outputs: int = 1
    curvature: float = 1.0
    means: bool = False

    def residual(self, scores: Array) -> Array:
        return self.y[:, None] - scores

    def shift(self, mean: float) -> float:
        return mean

    def information(self, level: Array) -> float:
        return 1.0


@dataclass(frozen=True)
class Huber(Squared):
    """Squared up to ``longest``, linear beyond."""

    clip: float = 1.0
    longest: float = 1.0

    def residual(self, scores: Array) -> Array:
        return np.clip(self.y[:, None] - scores, -self.longest, self.longest)

    def shift(self, mean: float) -> float:
        return 0.0  # the bulk, not the mean


@dataclass(frozen=True)
class Logistic:
    """Cross-entropy of codes 0 and 1, or of ``classes`` codes."""

    y: Array
    classes: int = 2
    means: bool = False

    @property
    def outputs(self) -> int:
        return 1 if self.classes == 2 else self.classes

    @property
    def clip(self) -> float:
        return 1.0 if self.classes == 2 else 2**0.5

    @property
    def curvature(self) -> float:
        return 0.25 if self.classes == 2 else 0.5

    def residual(self, scores: Array) -> Array:
        if self.classes == 2:
            return self.y[:, None] - expit(scores)
        return np.eye(self.classes)[self.y.astype(np.intp)] - softmax(scores, axis=1)

    def shift(self, mean: float) -> float:
        return 0.0

    def information(self, level: Array) -> float:
        """Of classes also the variance of residuals."""
        return float(np.mean(of_classes(expit(level) if self.classes == 2 else softmax(level))))


@dataclass(frozen=True)
class Poisson:
    """Counts in units of their mean; ``offset`` is the log of the exposure."""

    y: Array
    offset: Array
    clip: float = 2.0
    outputs: int = 1
    curvature: float = 2.0
    means: bool = True

    def residual(self, scores: Array) -> Array:
        scores = np.clip(scores, -FARTHEST, FARTHEST)
        return self.y[:, None] - np.exp(scores + self.offset[:, None])

    def shift(self, mean: float) -> float:
        return 0.0  # counts have light tails

    def information(self, level: Array) -> float:
        return 1.0  # in units of the mean


@dataclass(frozen=True)
class Gamma(Poisson):
    """Positive amounts in units of their mean."""

    clip: float = 3.0

    def residual(self, scores: Array) -> Array:
        scores = np.clip(scores, -FARTHEST, FARTHEST)
        return self.y[:, None] * np.exp(-scores - self.offset[:, None]) - 1.0

    def shift(self, mean: float) -> float:
        return float(np.log1p(max(mean, -0.5)))
