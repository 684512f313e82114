"""The tail plot's straight line: log(-log S) against log x over the upper part of the sample.

For a Weibull tail log(-log S(x)) = (log x - log K)/theta, so the slope is 1/theta and the
intercept -log(K)/theta. Every observation counts once: weighting by the variance of log(-log S)
was tried and does not help, because the errors of neighbouring ranks are shared.
"""

from __future__ import annotations

import numpy as np

from winsor.tails.points import Floats, TailPoints


def tail_line(points: TailPoints, weight: Floats, below: Floats) -> tuple[Floats, Floats]:
    """Slope and intercept for each row of resampled weights (B, m), with counts below (B,)."""
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
