"""Estimates without the part that chance explains: post-processing of what was released.

    kept   1 - v / |c|^2, or nothing: c an estimate, v the sum of the variances of its coordinates

This is James & Stein's (1961) shrinkage, a Wiener filter whose signal is estimated. Chance is the
noise of the releases and the randomness of rows together. Slopes are drawn towards zero and the
level stays: where noise is all there is, what remains is the mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from winsor.tables.glm_losses import Logistic, Loss, Softmax

Array = NDArray[np.float64]

RAREST = 0.01
"""A class counts as no rarer than this in what rows say of a score."""


def kept_share(squares: Array, chance: Array | float) -> Array:
    """Of estimates with these sums of ``squares``, what chance does not explain.

    >>> kept_share(np.array([0.5, 2.0, 100.0]), 1.0).tolist()
    [0.0, 0.5, 0.99]
    """
    return np.maximum(0.0, 1.0 - chance / np.maximum(squares, 1e-300))


def information(loss: Loss, level: Array) -> Array:
    """About the second derivative of ``loss`` at scores near ``level`` (outputs,)."""
    if isinstance(loss, Softmax):
        return of_classes(softmax(level))
    return of_classes(expit(level)) if isinstance(loss, Logistic) else np.ones_like(level)


def of_classes(chances: Array) -> Array:
    """The same for classes with these ``chances``; also the variance of a residual. Rows vary
    about the chances, which makes it less than this."""
    return np.maximum(chances * (1 - chances), RAREST)


def towards_level(theta: Array, constant: Array | None, variance: Array) -> Array:
    """Whitened parameters (p, outputs), of which every coordinate has this ``variance`` (outputs,)
    by chance, drawn towards their part along ``constant``, the parameters of a model without
    slopes, or towards zero."""
    level, free = np.zeros_like(theta), len(theta)
    if constant is not None:
        level = np.outer(constant, constant @ theta) / (constant @ constant)
        free -= 1
    slopes = theta - level
    return level + kept_share(np.sum(slopes**2, axis=0), free * variance) * slopes
