"""The two bounds on private selection as formulas: what they need of a trial is given as numbers.

Statements and proof are in `selection`. Nothing here knows of events.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from winsor.core.accounting.dominating import ROUNDING
from winsor.core.events.registry import Orders
from winsor.core.events.trial_counts import PoissonTrials, TrialCounts, TruncatedNegativeBinomial

Array = NDArray[np.float64]

_POINTS = (9, 17)
"""Values of e1 that are looked at in each round."""


def log_ratio(law: TruncatedNegativeBinomial, epsilons: Array, deltas: Array) -> float:
    """log R, the smallest over the points (epsilon >= 0, delta_Q(epsilon)) that are known."""
    return float(np.min(_log_ratios(law, epsilons, deltas)))


def _log_ratios(law: TruncatedNegativeBinomial, epsilons: Array, deltas: Array) -> Array:
    weight = (1 - law.gamma) / law.gamma
    with np.errstate(divide="ignore"):
        logs = np.logaddexp(epsilons, math.log(weight) + np.log(deltas))
    return np.asarray((law.eta + 1) * logs * ROUNDING, float)


def smallest_log_ratio(
    law: TruncatedNegativeBinomial, profile: Callable[[Array], Array], largest: float
) -> float:
    """log R, minimised over e1 from 0 to ``largest``.

    Any e1 gives a bound, so a coarse search is sound. exp(e1) + const delta_Q(e1) is convex: a
    second round between the neighbours of the best ends within 1/64 of the range.

    >>> law = TruncatedNegativeBinomial.of_mean(10)
    >>> profile = lambda e1: np.exp(-3 * e1)
    >>> everywhere = np.linspace(0, 4, 100_001)
    >>> found = smallest_log_ratio(law, profile, 4.0)
    >>> 0 <= found - log_ratio(law, everywhere, profile(everywhere)) < 1e-3
    True
    """
    low, high, best = 0.0, largest, math.inf
    for count in _POINTS:
        points = np.linspace(low, high, count)
        found = _log_ratios(law, points, profile(points))
        place = int(np.argmin(found))
        best = min(best, float(found[place]))
        low, high = points[max(0, place - 1)], points[min(count - 1, place + 1)]
    return best


def selected_divergences(
    law: TrialCounts, orders: Orders, one: Orders, delta_of: Callable[[float], float]
) -> Orders:
    """The Renyi bound on a selection, from the divergences ``one`` of a trial at ``orders``.

    ``delta_of`` gives the trial's delta at an epsilon; the Poisson law asks for it.
    """
    several = one + math.log(law.mean) / (orders - 1)
    if isinstance(law, PoissonTrials):
        several = several + law.mean * np.array([delta_of(math.log1p(1 / (a - 1))) for a in orders])
    else:
        order_cost = (1 - 1 / orders) * one - math.log(law.gamma) / orders
        several = several + (1 + law.eta) * float(np.min(order_cost))
    # Divergences grow with the order, so a higher order's bound also holds below it.
    return np.asarray(np.minimum.accumulate(several[::-1])[::-1] * (1 + 1e-12), float)


def renyi_deltas(orders: Orders, divergences: Orders, epsilons: Array) -> Array:
    """dp-accounting's `compute_delta` at many epsilons at once.

    exp((a-1)(D - eps + log(1-1/a))) / a at the best order (Canonne, Kamath & Steinke 2020, Prop.
    12), or sqrt(1 - exp(-D)) where that is smaller.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = np.log1p(-1 / orders)
        gaps = divergences[None, :] - epsilons[:, None] + shares[None, :]
        logs = (orders - 1)[None, :] * gaps - np.log(orders)[None, :]
        logs[:, orders <= 1.01] = np.inf  # not stable, nor useful, near 1
        variation = 0.5 * np.log(-np.expm1(-divergences))
    smallest = np.minimum(np.nanmin(logs, axis=1), np.min(variation))
    return np.asarray(np.exp(np.minimum(smallest, 0.0)) * (1 + 1e-12), float)
