"""Exact binomial confidence bounds (Clopper and Pearson 1934).

    lower(k, n): the p at which seeing k or more of n has probability alpha,
    upper(k, n): the p at which seeing k or fewer of n has probability alpha.

Guarantee
---------
For every true p, each bound is wrong with probability at most alpha. No approximation, no prior.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

from winsor.core.contract import ConfigurationError

Floats = NDArray[np.float64]


def lower(successes: ArrayLike, trials: int, alpha: float) -> Floats:
    """A probability that the true one exceeds with confidence ``1 - alpha``."""
    k = _checked(successes, trials, alpha)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), trials - k + 1, alpha), 0.0)


def upper(successes: ArrayLike, trials: int, alpha: float) -> Floats:
    """A probability that the true one stays below with confidence ``1 - alpha``."""
    k = _checked(successes, trials, alpha)
    missed = np.maximum(trials - k, 1)
    return np.where(k < trials, betainccinv(k + 1, missed, alpha), 1.0)


def _checked(successes: ArrayLike, trials: int, alpha: float) -> Floats:
    k = np.asarray(successes, dtype=np.float64)
    if trials < 1 or not ((k >= 0) & (k <= trials)).all():
        raise ConfigurationError(
            f"successes must lie between 0 and trials = {trials}, which must be at least 1. "
            f"Got {successes!r} instead."
        )
    if not 0 < alpha < 1:
        raise ConfigurationError(f"alpha must be strictly between 0 and 1. Got {alpha!r} instead.")
    return k
