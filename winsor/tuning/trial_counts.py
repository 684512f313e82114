"""How many trials a tuning runs: the laws of K for which private selection has a proof, and the
two bounds on selection as formulas (statements and proof are in `selection`).

A fixed number of trials must be paid for by composition. A *random* number, whose law is public and
whose value stays secret, costs little more than one trial, because the winner hardly says how many
it beat. With G the chance that a trial is better than a given one, everything the proof needs is
the generating function phi(z) = E[z^K] near z = 1 - G.

    truncated negative binomial    phi'(z) proportional to (1 - (1-gamma) z)^-(eta+1), K >= 1
        eta = 0   logarithmic law, P(K = k) = (1-gamma)^k / (k log(1/gamma))
        eta = 1   geometric law
    Poisson                        phi(z) = exp(mean (z - 1)), K >= 0: there may be no trial at all

Smaller eta costs less privacy for the same mean and spreads K more widely.

References
----------
Liu, Talwar: Private Selection from Private Candidates, 2019. Papernot, Steinke: Hyperparameter
Tuning with Renyi Differential Privacy, 2022, section 3.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from winsor.core.checks import at_least, positive, refusal
from winsor.core.contract import ConfigurationError
from winsor.core.events.registry import ROUNDING, Orders
from winsor.core.randomness import stream

Array = NDArray[np.float64]

_DIGITS = 100
_COIN_BITS = 256
_MOST = 10**7  # trials: a law that asks for more is not going to be run
_POINTS = (9, 17)  # values of e1 that are looked at in each round
_ARITHMETIC = decimal.Context(prec=_DIGITS, Emin=-(10**9), Emax=10**9)


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """K on 1, 2, ... with P(K = k) = c (1-gamma)^k prod_{l<k} (l+eta)/(l+1), eta > -1.

    >>> law = TruncatedNegativeBinomial.of_mean(10)
    >>> round(law.gamma, 4), round(law.mean, 9)
    (0.0269, 10.0)
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        at_least("eta", self.eta, -1)
        if self.eta == -1:
            raise refusal("eta", "above -1", self.eta, "eta = 0 is the logarithmic law.")
        positive("gamma", self.gamma)
        if self.gamma >= 1:
            raise refusal("gamma", "below 1", self.gamma, "With gamma = 1 there is one trial.")

    @staticmethod
    def of_mean(mean: float, eta: float = 0.0) -> TruncatedNegativeBinomial:
        """The law with this mean number of trials."""
        at_least("mean", mean, 1)
        if not 1.001 <= mean <= 1e6:
            raise refusal("mean", "from 1.001 to a million trials", mean, "One trial needs no law.")
        low, high = math.log(1e-300), math.log1p(-1e-6)

        def excess(log: float) -> float:
            return _tnb_mean(eta, math.exp(log)) - mean

        if excess(low) < 0:
            raise ConfigurationError(
                f"mean must be one that eta = {eta!r} reaches. Got {mean!r} instead. Raise eta."
            )
        root = float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
        return TruncatedNegativeBinomial(float(eta), math.exp(root))

    @property
    def mean(self) -> float:
        """E[K] = phi'(1)."""
        return _tnb_mean(self.eta, self.gamma)

    def generating(self, z: float) -> float:
        """phi(z) = E[z^K] for 0 <= z <= 1."""
        inside = math.log1p(-(1 - self.gamma) * z)
        if self.eta == 0:
            return inside / math.log(self.gamma)
        return math.expm1(-self.eta * inside) / math.expm1(-self.eta * math.log(self.gamma))

    def probabilities(self) -> Iterator[tuple[int, Decimal]]:
        """(k, P(K = k)) for k = 1, 2, ..., to a hundred digits."""
        with decimal.localcontext(_ARITHMETIC):
            eta, gamma = Decimal(self.eta), Decimal(self.gamma)
            # K = 1: c (1-gamma) eta, where c eta has a limit at eta = 0.
            scale = -gamma.ln() if eta == 0 else (gamma**-eta - 1) / eta
            term = (1 - gamma) / scale
        for k in range(1, _MOST):
            yield k, term
            with decimal.localcontext(_ARITHMETIC):
                term = term * (1 - gamma) * (k + eta) / (k + 1)

    def __str__(self) -> str:
        kind = {0.0: "logarithmic", 1.0: "geometric"}.get(
            self.eta, f"truncated negative binomial (eta {self.eta:g})"
        )
        return f"{kind} number of trials, mean {self.mean:.4g}"


@dataclass(frozen=True)
class PoissonTrials:
    """K ~ Poisson(mean). With probability exp(-mean) there is no trial and nothing to release."""

    mean: float

    def __post_init__(self) -> None:
        at_least("mean", self.mean, 1, "The Renyi bound is stated for a mean of 1 or more.")

    def generating(self, z: float) -> float:
        """phi(z) = E[z^K]."""
        return math.exp(self.mean * (z - 1))

    def probabilities(self) -> Iterator[tuple[int, Decimal]]:
        """(k, P(K = k)) for k = 0, 1, ..., to a hundred digits."""
        with decimal.localcontext(_ARITHMETIC):
            mean = Decimal(self.mean)
            term = (-mean).exp()
        for k in range(_MOST):
            yield k, term
            with decimal.localcontext(_ARITHMETIC):
                term = term * mean / (k + 1)

    def __str__(self) -> str:
        return f"Poisson number of trials, mean {self.mean:.4g}"


TrialCounts = TruncatedNegativeBinomial | PoissonTrials
"""A public law of the secret number of trials."""


def draw(law: TrialCounts, key: bytes) -> int:
    """K under ``key``: the same at every call, so a resumed tuning runs as many trials.

    Inverse distribution function with a coin of 256 bits and probabilities to a hundred digits:
    the law of K differs from the stated one by less than 1e-70, whatever the tail.
    """
    coin = int.from_bytes(stream(key, "number of trials", 0).bytes(_COIN_BITS // 8), "little")
    with decimal.localcontext(_ARITHMETIC):
        level = Decimal(coin) / Decimal(2**_COIN_BITS)
    return _quantile(law, level)


def quantile(law: TrialCounts, probability: float) -> int:
    """The smallest k with P(K <= k) >= probability. Public: it is about the law, not the draw.

    >>> [quantile(TruncatedNegativeBinomial.of_mean(10), p) for p in (0.5, 0.9, 0.99)]
    [4, 26, 81]
    """
    if not 0 < probability < 1:
        raise refusal("probability", "strictly between 0 and 1", probability)
    return _quantile(law, Decimal(probability))


def _quantile(law: TrialCounts, level: Decimal) -> int:
    with decimal.localcontext(_ARITHMETIC):
        total = Decimal(0)
    for k, term in law.probabilities():
        with decimal.localcontext(_ARITHMETIC):
            total += term
        if total > level:
            return k
    return _MOST


def _tnb_mean(eta: float, gamma: float) -> float:
    """eta (1-gamma) / (gamma (1 - gamma^eta)); its limit at eta = 0."""
    log = math.log(gamma)
    if eta == 0:
        return math.expm1(-log) / -log
    return eta * math.expm1(-log) / -math.expm1(eta * log)


# ------------------------------------------------- the two bounds, of a trial given as numbers


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
