"""The upper part of a sample as weighted points: all that the tail fits look at.

The largest `EXACT` norms are kept one by one; below them, neighbouring order statistics are
merged into cells of about two per cent of their rank, represented by their mean logarithm.
A million norms become about seven hundred points, so a fit and its bootstrap cost the same for
every sample size, and the merging moves no estimate by more than a small fraction of its
standard error (a test compares). Norms below the threshold enter by their number only: they are
left-censored, so the shape of the body cannot bend the fit of the tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.contract import ConfigurationError

Floats = NDArray[np.float64]

normal_quantile = NormalDist().inv_cdf
"""Without scipy.stats, which takes longer to import than most fits take to run."""

EXACT = 300
CELL_GROWTH = 1.02
MINIMUM = 50
"""Fewest positive norms from which a tail is fitted."""


@dataclass(frozen=True)
class TailPoints:
    """Points z = log(norm) in decreasing order with weights, and the number left below."""

    z: Floats
    weight: Floats
    threshold: float
    below: float
    """Number of norms at or below exp(threshold): known only to be there."""

    @property
    def size(self) -> float:
        """Number of norms, those below the threshold included."""
        return float(self.weight.sum() + self.below)


def log_norms(norms: ArrayLike) -> tuple[Floats, int]:
    """Return the decreasing logarithms of the positive norms, and the number of zeros.

    Raises `ConfigurationError` for negative or non-finite norms and for samples too small or too
    concentrated to have a tail.
    """
    try:
        x = np.asarray(norms, dtype=np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"norms must be an array of numbers. Got {type(norms).__name__} instead, which NumPy "
            "cannot read as float64. Load a file first, with numpy.load(path); `winsor tails FILE` "
            "does it for you."
        ) from error
    if not np.isfinite(x).all() or (x < 0).any():
        bad = int((~np.isfinite(x) | (x < 0)).sum())
        raise ConfigurationError(
            f"norms must be finite and not negative. Got {bad} that are not. Take absolute values, "
            "or drop the rows whose gradients overflowed, before fitting."
        )
    positive = x[x > 0]
    if positive.size < MINIMUM:
        raise ConfigurationError(
            f"norms must hold at least {MINIMUM} positive values. Got {positive.size} instead. "
            "Pool the norms of several steps."
        )
    z = np.sort(np.log(positive))[::-1]
    if z[0] - z[z.size // 2] < 1e-9:
        raise ConfigurationError(
            "norms must vary above their median. Got one value only; there is no tail to fit."
        )
    return z, x.size - positive.size


def tail_points(z: Floats, zeros: int, fraction: float) -> TailPoints:
    """Return the largest ``fraction`` of the sample (zeros included) as weighted points."""
    n = z.size + zeros
    k = min(z.size - 1, max(2, round(fraction * n)))
    edges = _edges(k)
    counts = np.diff(edges).astype(np.float64)
    sums = np.add.reduceat(z[:k], edges[:-1])
    return TailPoints(z=sums / counts, weight=counts, threshold=float(z[k]), below=float(n - k))


def _edges(k: int) -> NDArray[np.int64]:
    """Ranks where cells start (and k): singletons first, then cells growing with the rank."""
    singles = np.arange(min(k, EXACT), dtype=np.int64)
    if k <= EXACT:
        return np.append(singles, k)
    cells = int(np.ceil(np.log(k / EXACT) / np.log(CELL_GROWTH)))
    grown = np.unique(np.round(EXACT * (k / EXACT) ** (np.arange(cells + 1) / cells)).astype(int))
    return np.concatenate([singles, grown]).astype(np.int64)


def tail_line(points: TailPoints, weight: Floats, below: Floats) -> tuple[Floats, Floats]:
    """Return slope and intercept for rows of resampled weights (B, m), with counts below (B,)."""
    total = weight.sum(axis=1) + below
    rank = np.cumsum(weight, axis=1) - 0.5 * weight
    depth = np.log(total[:, None] / np.maximum(rank, 0.25))
    y = np.log(np.maximum(depth, 1e-12))
    above = weight.sum(axis=1)
    z_mean = weight @ points.z / above
    y_mean = (weight * y).sum(axis=1) / above
    dz = points.z - z_mean[:, None]
    slope = (weight * dz * (y - y_mean[:, None])).sum(axis=1) / (weight * dz**2).sum(axis=1)
    return slope, y_mean - slope * z_mean
