"""What a mechanism claims, as a curve: delta as a function of epsilon.

A claim bounds every test an adversary can run. If a test has false-positive rate b (it cries
"present" when the record is absent), its true-positive rate is at most

    power(b) = min over epsilon of  e^epsilon b + delta(epsilon)  and  1 - (1-delta-b)/e^epsilon,

the second from the reversed test, since a claim holds for both orders of the two datasets.

Guarantee
---------
The minimum is taken over a fixed grid of epsilons, which can only raise `power`: the audit then
errs towards *not* accusing. Between grid points delta is read off the chord in e^epsilon, an upper
bound because the hockey-stick divergence is convex in e^epsilon.

A history of events with its noise scaled is a family of claims, ordered by their noise. If a
mechanism is of that kind at all, it has, with the confidence of the test, no more noise than the
largest that is not refuted, hence at least the epsilon of that noise (`measured_epsilon`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from winsor.core.contract import ConfigurationError, UnsupportedEvent

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from winsor.core.contract import Neighbouring
    from winsor.core.events.registry import History

Floats = NDArray[np.float64]
GRID: Floats = np.concatenate(
    [np.linspace(0, 2, 101), np.linspace(2.05, 12, 200), np.linspace(12.25, 60, 192)]
)
"""Epsilons at which curves are compared. Fixed, never chosen by the data."""
SMALLEST_DELTA = 1e-9
"""Smaller deltas cannot be seen in any number of runs that an audit makes."""
USUAL_DELTA = 1e-5


@dataclass(frozen=True)
class Claim:
    """A privacy curve at some epsilons: ``deltas[i]`` is claimed at ``epsilons[i]``."""

    name: str
    epsilons: Floats = field(repr=False)
    deltas: Floats = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.epsilons) != len(self.deltas) or not len(self.deltas):
            raise ConfigurationError(
                "a claim needs one delta per epsilon, and at least one. Got "
                f"{len(self.epsilons)} epsilons and {len(self.deltas)} deltas instead."
            )

    def power(self, false_positive: Floats | float) -> Floats:
        """Return the largest true-positive rate that the claim allows at a false-positive rate."""
        forward, reversed_ = self._limits(false_positive)
        return np.minimum(np.minimum(forward.min(axis=-1), reversed_.min(axis=-1)), 1.0)

    def least_false_positive(self, true_positive: float) -> float:
        """Return the inverse of `power`: the smallest false-positive rate the claim allows."""
        forward = (true_positive - self.deltas) / self._odds
        reversed_ = 1 - self.deltas - self._odds * (1 - true_positive)
        return max(float(forward.max()), float(reversed_.max()), 0.0)

    def binding_epsilon(self, false_positive: float) -> float:
        """Return the epsilon whose constraint is the tightest at this false-positive rate."""
        return float(self.epsilons[np.argmin(np.minimum(*self._limits(false_positive)))])

    def _limits(self, false_positive: Floats | float) -> tuple[Floats, Floats]:
        """(..., epsilons) bounds on the true-positive rate, by each order of the datasets."""
        b = np.asarray(false_positive, dtype=np.float64)[..., None]
        return self._odds * b + self.deltas, 1 - (1 - self.deltas - b) / self._odds

    def epsilon(self, delta: float) -> float:
        """Return the claimed epsilon at ``delta``: infinite if no point of the claim reaches it."""
        reached = np.flatnonzero(self.deltas <= delta)
        if not len(reached):
            return math.inf
        i = int(reached[0])
        if i == 0 or self.deltas[i] == delta:
            return float(self.epsilons[i])
        high, low = self.deltas[i - 1], self.deltas[i]
        share = (high - delta) / (high - low)
        return math.log(self._odds[i - 1] + share * (self._odds[i] - self._odds[i - 1]))

    @cached_property
    def _odds(self) -> Floats:
        return np.exp(self.epsilons)


def gaussian_delta(epsilon: Floats | float, mu: float) -> Floats:
    """Return delta(epsilon) of N(0,1) against N(mu,1) (Balle and Wang 2018, Theorem 8)."""
    e = np.asarray(epsilon, dtype=np.float64)
    first, second = log_ndtr(mu / 2 - e / mu), log_ndtr(-mu / 2 - e / mu)
    # Phi(a) - e^eps Phi(b) = Phi(a) (1 - exp(eps + log Phi(b) - log Phi(a))): no cancellation.
    return np.asarray(np.exp(first) * -np.expm1(np.minimum(e + second - first, 0.0)))


def gaussian_claim(mu: float, name: str = "") -> Claim:
    """Return the claim of mu-Gaussian DP: as private as one release of shift/noise ``mu``."""
    if not (math.isfinite(mu) and mu > 0):
        raise ConfigurationError(f"mu must be a positive finite number. Got {mu!r} instead.")
    return Claim(name or f"{mu:.4g}-GDP", GRID, gaussian_delta(GRID, mu))


def point_claim(epsilon: float, delta: float, name: str = "") -> Claim:
    """Return the claim of (epsilon, delta)-DP and nothing more, as most papers state it."""
    return Claim(name or f"({epsilon:g}, {delta:g})-DP", np.array([epsilon]), np.array([delta]))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the mu at which Gaussian DP has this epsilon at this delta."""
    return float(brentq(lambda mu: float(gaussian_delta(epsilon, mu)) - delta, 1e-6, 1e3))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of mu-Gaussian DP at this delta: 0 where delta alone covers it."""
    if mu <= 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    top = mu * mu / 2 + mu * 40
    return float(brentq(lambda e: float(gaussian_delta(e, mu)) - delta, 0.0, top))


def claim_of(delta_at: Callable[[Floats], Floats], name: str) -> Claim:
    """Return a claim from any curve, evaluated on the fixed grid."""
    return Claim(name, GRID, np.clip(delta_at(GRID), 0.0, 1.0))


def certified_claim(
    history: History, relation: Neighbouring, points: int = 40, name: str = "certified"
) -> Claim:
    """Return what winsor's accountant certifies for a ledger: the curve to be broken.

    The epsilons run evenly from 0 to where delta is `SMALLEST_DELTA`.
    """
    from winsor.core.accounting import account, delta_curve

    top = min(account(history, SMALLEST_DELTA, relation).epsilon, GRID[-1])
    usual = account(history, USUAL_DELTA, relation).epsilon
    epsilons = np.unique(np.append(np.linspace(0.0, top, points), usual))
    return Claim(name, epsilons, delta_curve(history, epsilons, relation))


# ------------------------------------------------------------------- claims ordered by their noise

Refutes = Callable[[Claim], bool]


def measured_epsilon(
    history: History,
    relation: Neighbouring,
    delta: float,
    refutes: Refutes,
    noise: tuple[float, float] = (0.5, 4.0),
) -> float | None:
    """Return epsilon of the history at the largest noise factor in ``noise`` that is not refuted.

    0 where not even the most noise is refuted, None if some event's noise cannot be scaled.
    """
    from winsor.core.accounting import account

    try:
        scaled(history, 1.0)
    except UnsupportedEvent:
        return None
    low, high = noise
    claim_at = lambda factor: certified_claim(scaled(history, factor), relation, points=16)  # noqa: E731
    factor = invert(claim_at, refutes, low, high, tolerance=0.005)
    return 0.0 if factor >= high else account(scaled(history, factor), delta, relation).epsilon


def invert(
    family: Callable[[float], Claim],
    refutes: Refutes,
    low: float,
    high: float,
    tolerance: float = 5e-4,
) -> float:
    """Return the largest noise in [low, high] whose claim is not refuted.

    ``family`` maps a noise scale to a claim and must promise more privacy for more noise. Returns
    ``low`` when even that claim is refuted, ``high`` when nothing is.
    """
    if not refutes(family(high)):
        return high
    least = low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refutes(family(middle)) else (middle, high)
    return least if low == least and refutes(family(least)) else high


def scaled(history: History, factor: float) -> list[tuple[DpEvent, int]]:
    """Return the same history with ``factor`` times the noise."""
    return [(_scaled_event(event, factor), count) for event, count in history]


def _scaled_event(event: DpEvent, factor: float) -> DpEvent:
    if isinstance(event, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent):
        return type(event)(event.noise_multiplier * factor)
    if isinstance(event, dp_event.MixtureOfGaussiansDpEvent):
        deviation = event.standard_deviation * factor
        return dp_event.MixtureOfGaussiansDpEvent(
            deviation, event.sensitivities, event.sampling_probs
        )
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        inner = _scaled_event(event.event, factor)
        return dp_event.PoissonSampledDpEvent(event.sampling_probability, inner)
    if isinstance(event, dp_event.SampledWithoutReplacementDpEvent):
        inner = _scaled_event(event.event, factor)
        return dp_event.SampledWithoutReplacementDpEvent(
            event.source_dataset_size, event.sample_size, inner
        )
    raise UnsupportedEvent(
        f"only Gaussian and Laplace events, sampled or not, form a family. Got {event!r} instead."
    )
