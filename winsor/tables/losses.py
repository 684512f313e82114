"""Convex losses of a score z = <x, w> + b: values, residuals dl/dz, and their bounds.

    squared, huber, absolute    y a number; the score is the mean, or the median
    logistic, hinge, softmax    y a class number; one score, or one per class
    poisson                     y >= 0 in units of its mean; the score is the log mean
    gamma                       y > 0 in units of its mean; the same, residuals relative

Scores of the log links are kept within reach of the start, so that no step makes them overflow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from winsor.core.arithmetic.rows import squares

Array = NDArray[np.float64]

FARTHEST = 12.0
"""Logarithms of means lie within this distance of that of the overall mean."""
RAREST = 0.01
"""A class counts as no rarer than this in what rows say of a score."""


class Loss(ABC):
    """A convex loss of the score."""

    outputs: int = 1
    curvature: float
    """Upper bound on the second derivative (for K outputs: on the Hessian's largest eigenvalue);
    infinite for a loss with a kink."""
    slope: float
    """Upper bound on |dl/dz|; infinite for squared errors."""
    clip: float
    """Where residuals are cut before anything is known of them."""
    means: bool = False
    """Whether residuals are skewed and means are wanted: a cut must not touch the bulk."""

    @abstractmethod
    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""

    @abstractmethod
    def residual(self, scores: Array, y: Array) -> Array:
        """Return dl/dz of each row."""

    def information(self, level: Array) -> Array:
        """Return about the second derivative at scores near ``level`` (outputs,)."""
        return np.ones_like(level)

    def shift(self, mean: float) -> float:
        """Return by how much scores move if residuals y - z beyond the cut have this mean."""
        return 0.0


class Logistic(Loss):
    """log(1 + e^z) - y z with y in {0, 1}."""

    curvature, slope, clip = 0.25, 1.0, 1.0

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        return np.logaddexp(0.0, scores) - y * scores

    def residual(self, scores: Array, y: Array) -> Array:
        """Return dl/dz of each row."""
        return expit(scores) - y

    def information(self, level: Array) -> Array:
        """Return the second derivative at ``level``; also the variance of a residual."""
        return information_of_classes(expit(level))


class Softmax(Loss):
    """Cross-entropy of K scores; y holds class numbers."""

    curvature, slope, clip = 0.5, 2**0.5, 2**0.5

    def __init__(self, classes: int) -> None:
        self.outputs = classes

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        return -log_softmax(scores, axis=1)[np.arange(len(y)), y.astype(np.intp)]

    def residual(self, scores: Array, y: Array) -> Array:
        """Return dl/dz of each row, (n, K)."""
        residual = softmax(scores, axis=1)
        residual[np.arange(len(y)), y.astype(np.intp)] -= 1.0
        return residual

    def information(self, level: Array) -> Array:
        """Return the second derivatives at ``level``; also the variances of residuals."""
        return information_of_classes(softmax(level))


class Squared(Loss):
    """(z - y)^2 / 2."""

    curvature, slope, clip = 1.0, float("inf"), 2.0

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        return squares(scores - y) / 2

    def residual(self, scores: Array, y: Array) -> Array:
        """Return dl/dz of each row."""
        return scores - y

    def shift(self, mean: float) -> float:
        """Return the mean: scores are means."""
        return mean


class Huber(Loss):
    """Quadratic up to ``threshold``, linear beyond: residuals never exceed the threshold."""

    curvature = 1.0

    def __init__(self, threshold: float) -> None:
        self.slope = self.clip = threshold

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        gap = np.abs(scores - y)
        return np.where(gap <= self.slope, squares(gap) / 2, self.slope * (gap - self.slope / 2))

    def residual(self, scores: Array, y: Array) -> Array:
        """Return dl/dz of each row."""
        return np.clip(scores - y, -self.slope, self.slope)


class Hinge(Loss):
    """max(0, 1 - s z) with s = 2y - 1 and y in {0, 1}; at the kink the subgradient is 0."""

    curvature, slope, clip = float("inf"), 1.0, 1.0

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        return np.maximum(0.0, 1.0 - (2 * y - 1) * scores)

    def residual(self, scores: Array, y: Array) -> Array:
        """Return a subgradient of each row."""
        signs = 2 * y - 1
        return np.where(signs * scores < 1.0, -signs, 0.0)


class Absolute(Loss):
    """|z - y|: the median instead of the mean; at the kink the subgradient is 0."""

    curvature, slope, clip = float("inf"), 1.0, 1.0

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        return np.abs(scores - y)

    def residual(self, scores: Array, y: Array) -> Array:
        """Return a subgradient of each row."""
        return np.sign(scores - y)


class PoissonLoss(Loss):
    """exp(z + o) - y z for counts in units of their mean; the ``offset`` o is the log exposure."""

    curvature, slope, means = 2.0, float("inf"), True

    def __init__(self, offset: Array, clip: float = 2.0) -> None:
        self.offset, self.clip = offset, clip

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        scores = np.clip(scores, -FARTHEST, FARTHEST)
        return np.asarray(np.exp(scores + self.offset) - y * scores)

    def residual(self, scores: Array, y: Array) -> Array:
        """Return dl/dz of each row."""
        scores = np.clip(scores, -FARTHEST, FARTHEST)
        return np.asarray(np.exp(scores + self.offset) - y)


class GammaLoss(PoissonLoss):
    """y exp(-z - o) + z for positive amounts in units of their mean."""

    def __init__(self, offset: Array) -> None:
        super().__init__(offset, 3.0)

    def value(self, scores: Array, y: Array) -> Array:
        """Return the loss of each row."""
        scores = np.clip(scores, -FARTHEST, FARTHEST)
        return np.asarray(y * np.exp(-scores - self.offset) + scores)

    def residual(self, scores: Array, y: Array) -> Array:
        """Return dl/dz of each row."""
        scores = np.clip(scores, -FARTHEST, FARTHEST)
        return np.asarray(1.0 - y * np.exp(-scores - self.offset))

    def shift(self, mean: float) -> float:
        """Return the logarithm of the factor that relative residuals of this mean ask for."""
        return float(np.log1p(max(mean, -0.5)))


def information_of_classes(chances: Array) -> Array:
    """Return the second derivatives for classes with these ``chances``; also the variances of
    residuals. Rows vary about the chances, which makes them less than this."""
    return np.maximum(chances * (1 - chances), RAREST)
