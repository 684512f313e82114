"""From bounds on a privacy profile to a pair of laws that can be composed.

A mechanism of which only delta(epsilon) is bounded, at some epsilons, has no loss distribution of
its own. But its profile is convex in alpha = e^epsilon, so it lies below the greatest convex
function under the known points, and that function is the profile of a pair of discrete laws. The
pair dominates the mechanism, and dominating pairs compose (Zhu, Dong & Wang 2022, Thm 10).

Guarantee
---------
`DominatingPair.delta` is at least the mechanism's delta at every epsilon >= 0, in both directions,
if the given deltas are at the given epsilons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, identity
from numpy.typing import NDArray

from winsor.core.accounting.privacy_losses import MOST_POINTS, TooFine
from winsor.core.contract import UnsupportedEvent
from winsor.core.events.registry import ROUNDING, Grid

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DominatingPair:
    """Losses > 0 with their probabilities, and the mass at infinity; symmetric in direction.

    A loss l of probability p comes with the loss -l of probability p e^-l; what is left is at 0.
    """

    losses: Array
    probabilities: Array
    infinite: float

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence of the pair at an epsilon >= 0."""
        beyond = self.losses > epsilon
        shares = -np.expm1(epsilon - self.losses[beyond])
        return self.infinite + float(self.probabilities[beyond] @ shares)


def dominating_pair(epsilons: Array, deltas: Array) -> DominatingPair:
    """The least revealing symmetric pair known to dominate: ``deltas`` bound a profile's points.

    A profile is convex in alpha = e^epsilon and, taken in both directions, satisfies f(alpha) =
    1 - alpha + alpha f(1/alpha). The convex hull of points and mirror images is, for alpha >= 1,
    that of the points and of (-1, 1): the line through a point and its image passes there. Slopes
    of the hull are minus the probability, under the other law, of larger ratios.
    """
    order = np.argsort(epsilons)
    losses = np.concatenate([[-math.inf], epsilons[order]])
    beyond = np.concatenate([[-2.0], np.expm1(epsilons[order])])  # alpha - 1: keeps small losses
    values = np.concatenate([[1.0], np.minimum(deltas[order] * ROUNDING, 1.0)])
    kept = _lower_hull(beyond, values)
    x, f = beyond[kept], values[kept]
    slopes = np.append(np.diff(f) / np.diff(x), 0.0)
    probabilities = (1 + x[1:]) * np.diff(slopes)
    positive = (x[1:] > 0) & (probabilities > 0)
    return DominatingPair(losses[kept][1:][positive], probabilities[positive], float(f[-1]))


def _lower_hull(x: Array, y: Array) -> list[int]:
    """Indices of the vertices of the lower convex hull, up to its lowest point (the leftmost)."""
    hull: list[int] = [0]
    for i in range(1, x.size):
        if y[i] >= y[hull[-1]]:
            continue
        if x[i] == x[hull[-1]]:
            hull.pop()
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) / (x[b] - x[a]) < (y[i] - y[b]) / (x[i] - x[b]):
                break
            hull.pop()
        hull.append(i)
    return hull


def on_grid(pair: DominatingPair, grid: Grid) -> PrivacyLossDistribution:
    """The pair on the grid: each loss is split between its neighbours, keeping both laws' mass."""
    if pair.infinite >= 1:
        raise UnsupportedEvent(
            "what is composed must have a finite privacy loss. Got an event without one instead: "
            "without noise nothing is private. Add noise."
        )
    if pair.losses.size == 0 and pair.infinite == 0:
        return identity(grid.interval)
    last = math.ceil(float(pair.losses.max(initial=0.0)) / grid.interval) + 1
    if last > MOST_POINTS:
        raise TooFine(f"{last} grid points at interval {grid.interval}")
    below = np.floor(pair.losses / grid.interval).astype(np.int64)
    ahead = pair.losses - below * grid.interval
    share = np.clip(np.expm1(-ahead) / math.expm1(-grid.interval), 0.0, 1.0)
    points = np.zeros(last + 1)
    np.add.at(points, below, pair.probabilities * (1 - share))
    np.add.at(points, below + 1, pair.probabilities * share)
    positive = points[1:]
    negative = positive * np.exp(-grid.interval * np.arange(1, last + 1))
    middle = max(0.0, 1.0 - pair.infinite - float(positive.sum()) - float(negative.sum()))
    both = np.concatenate([negative[::-1], [middle], positive])
    return PrivacyLossDistribution(
        DensePLDPmf(grid.interval, -last, both, pair.infinite, pessimistic_estimate=True)
    )
