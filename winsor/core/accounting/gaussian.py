"""Histories made of Gaussian events only, in closed form.

Gaussian releases compose exactly: multipliers nm_j, applied T_j times, are together one Gaussian
release with mu^2 = sum_j T_j / nm_j^2 (Dong, Roth & Su 2022, Cor. 3.3), whose profile is

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)      (Balle & Wang 2018, Thm 8).

Guarantee
---------
`epsilon` and `delta` are upper bounds: both are rounded outwards by more than the error of the
floating point evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scipy import optimize, special

_SLACK = 1e-9  # relative slack on delta; the evaluation below is good to about 1e-12


def total_mu(parts: Iterable[tuple[float, int]]) -> float:
    """mu of the composition of (noise multiplier, count) pairs; infinite if one has no noise."""
    total = 0.0
    for multiplier, count in parts:
        if count > 0:
            total += count / multiplier / multiplier if multiplier > 0 else math.inf
    return math.sqrt(total)


def log_delta(mu: float, epsilon: float) -> float:
    """Logarithm of the hockey-stick divergence of N(mu, 1) from N(0, 1) at e^epsilon."""
    ahead = float(special.log_ndtr(mu / 2 - epsilon / mu))
    behind = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
    if behind >= ahead:
        return -math.inf
    return ahead + math.log(-math.expm1(behind - ahead))


def delta(mu: float, epsilon: float) -> float:
    """Smallest delta at ``epsilon``, rounded up."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    return min(1.0, math.exp(log_delta(mu, epsilon)) * (1 + _SLACK) + 1e-300)


def epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon at ``delta``, rounded up."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    target = math.log(delta) - _SLACK
    if log_delta(mu, 0.0) <= target:
        return 0.0
    high = mu * (mu / 2 + math.sqrt(-2 * target)) + 1e-3 * mu  # where the first term alone is delta
    while log_delta(mu, high) > target:
        high *= 2
    root = float(optimize.brentq(lambda e: log_delta(mu, e) - target, 0.0, high, rtol=1e-12))
    return root * (1 + 1e-11) + 1e-15 * mu
