"""The curve test: is the claimed privacy curve violated at any epsilon?

1. Draw scores on two neighbouring datasets: the record in question is absent from one and present
   in the other. High scores speak for present.
2. A pilot sample, used for nothing else, fixes a few thresholds.
3. On fresh runs count the scores above each threshold. Clopper-Pearson gives, for all thresholds
   at once and with confidence 1 - alpha, a lower bound a on the true-positive rate and an upper
   bound b on the false-positive rate.
4. The claim is violated if a > power(b) at any threshold.

The same a and b also give lower bounds that need no claim: epsilon at delta, log((a - delta)/b);
Gaussian DP, mu = Phi^-1(a) - Phi^-1(b); and, within a family of claims ordered by their noise, the
largest noise that is not refuted (`claims.measured_epsilon`).

Guarantee
---------
An honest mechanism is accused with probability at most alpha: 2 bounds for each of at most
`MOST_THRESHOLDS` thresholds, each wrong with probability at most alpha / (2 MOST_THRESHOLDS), and
thresholds independent of the runs they are tested on. Every lower bound holds with the same
confidence, simultaneously.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv, ndtri

from winsor.audit.claims import Claim, gaussian_epsilon
from winsor.core.contract import ConfigurationError

Floats = NDArray[np.float64]

ABSENT, PRESENT = DATASETS = 0, 1
"""The pair of neighbouring datasets: without the record in question, and with it."""
ALPHA = 1e-4
"""Probability of accusing an honest mechanism. Ten times below the promised 1 in 1,000."""
MOST_THRESHOLDS = 4
PILOT_SHARE = 0.2
PILOT_DOUBT = 0.05
CHUNK = 1 << 18


class Experiment(Protocol):
    """A mechanism on two neighbouring datasets, and a score that was fixed before any run."""

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        """Return (runs,) independent scores of runs on ``dataset``, which is ABSENT or PRESENT.

        Runs of a different ``part`` or ``dataset`` have independent randomness.
        """


@dataclass(frozen=True)
class Roc:
    """What the runs proved: at threshold i, true positives >= a[i] and false positives <= b[i]."""

    thresholds: Floats
    true_positive: Floats
    false_positive: Floats
    runs: int
    alpha: float

    def margin(self, claim: Claim) -> float:
        """Return by how much the best test beats the claim; positive means violated."""
        return float((self.true_positive - claim.power(self.false_positive)).max())

    def refutes(self, claim: Claim) -> bool:
        """Return whether the runs refute ``claim``."""
        return self.margin(claim) > 0

    def violated_epsilon(self, claim: Claim) -> float:
        """Return the epsilon at which the violation (or the closest approach to it) was seen."""
        best = np.argmax(self.true_positive - claim.power(self.false_positive))
        return claim.binding_epsilon(float(self.false_positive[best]))

    def epsilon(self, delta: float) -> float:
        """Return a lower bound on epsilon at ``delta``, for any mechanism."""
        forward = _log_ratio(self.true_positive - delta, self.false_positive)
        reversed_ = _log_ratio(1 - self.false_positive - delta, 1 - self.true_positive)
        return float(max(forward.max(), reversed_.max(), 0.0))

    def mu(self) -> float:
        """Return a lower bound on mu, for a mechanism that satisfies Gaussian DP for some mu."""
        inside = (self.true_positive > 0) & (self.false_positive < 1)
        if not inside.any():
            return 0.0
        a, b = self.true_positive[inside], self.false_positive[inside]
        return float(max((ndtri(a) - ndtri(b)).max(), 0.0))

    def gaussian_epsilon(self, delta: float) -> float:
        """Return `mu` expressed as an epsilon."""
        return gaussian_epsilon(self.mu(), delta)


@dataclass(frozen=True)
class CurveVerdict:
    """The outcome of one curve test."""

    claim: Claim
    roc: Roc
    margin: float
    at_epsilon: float

    @property
    def violated(self) -> bool:
        """Return whether the claim is refuted."""
        return self.margin > 0


def curve_test(
    experiment: Experiment,
    claim: Claim,
    runs: int,
    delta: float = 1e-5,
    alpha: float = ALPHA,
    steer: Claim | None = None,
) -> CurveVerdict:
    """Try to refute ``claim`` with ``runs`` runs per dataset (the pilot included).

    ``delta`` and ``steer`` (default: the claim) only say what the thresholds should be good for:
    epsilon at delta, and refuting or measuring along the curve ``steer``.
    """
    pilot = max(1, round(runs * PILOT_SHARE))
    if runs - pilot < 100:
        raise ConfigurationError(f"runs must be at least 125 per dataset. Got {runs!r} instead.")
    absent = experiment.scores(ABSENT, pilot, 0)
    present = experiment.scores(PRESENT, pilot, 0)
    thresholds = choose_thresholds(absent, present, steer or claim, runs - pilot, delta, alpha)
    roc = measure(experiment, thresholds, runs - pilot, alpha)
    return CurveVerdict(claim, roc, roc.margin(claim), roc.violated_epsilon(claim))


def measure(experiment: Experiment, thresholds: Floats, runs: int, alpha: float = ALPHA) -> Roc:
    """Count scores above thresholds that were fixed beforehand, on fresh runs."""
    if not 1 <= len(thresholds) <= MOST_THRESHOLDS:
        raise ConfigurationError(
            f"thresholds must be 1 to {MOST_THRESHOLDS} numbers. Got {len(thresholds)} instead."
        )
    above = np.zeros((2, len(thresholds)), dtype=np.int64)
    for dataset in DATASETS:
        for part, size in _parts(runs):
            scores = _finite_order(experiment.scores(dataset, size, part))
            above[dataset] += (scores[:, None] > thresholds).sum(axis=0)
    each = alpha / (2 * MOST_THRESHOLDS)
    return Roc(
        thresholds,
        lower(above[PRESENT], runs, each),
        upper(above[ABSENT], runs, each),
        runs,
        alpha,
    )


# -------------------------------------------------------------------------- choosing thresholds


def choose_thresholds(
    absent: Floats, present: Floats, claim: Claim, runs: int, delta: float, alpha: float = ALPHA
) -> Floats:
    """Return the thresholds that promise most on the pilot, one for each of four purposes.

    The best chance of refuting the claim, the best epsilon at delta in each direction, and the
    best mu, all as predicted for ``runs`` fresh runs.
    """
    absent, present = _finite_order(absent), _finite_order(present)
    candidates = _candidates(absent, present)
    hits = [_above(scores, candidates) for scores in (absent, present)]
    b, a = [(h + 1) / (len(absent) + 2) for h in hits]  # add-one: no count is ever taken for 0
    # The best of many noisy promises would be a lucky one: promise only what the pilot assures.
    each = alpha / (2 * MOST_THRESHOLDS)
    a_low = lower(np.floor(lower(hits[1], len(present), PILOT_DOUBT) * runs), runs, each)
    b_high = upper(np.ceil(upper(hits[0], len(absent), PILOT_DOUBT) * runs), runs, each)
    promises = (
        _signal(a, b, claim, runs),
        _log_ratio(a_low - delta, b_high),
        _log_ratio(1 - b_high - delta, 1 - a_low),
        ndtri(np.clip(a_low, 1e-300, 1)) - ndtri(np.clip(b_high, 0, 1 - 1e-16)),
    )
    return np.unique([candidates[int(np.argmax(promise))] for promise in promises])


def _signal(a: Floats, b: Floats, claim: Claim, runs: int) -> Floats:
    """Excess of the true positives over the claim, in standard errors of the difference."""
    allowed = claim.power(b)
    step = 1e-4 * b
    slope = (claim.power(b + step) - allowed) / step
    error = np.sqrt((a * (1 - a) + slope**2 * b * (1 - b)) / runs)
    return (a - allowed) / error


def _candidates(absent: Floats, present: Floats) -> Floats:
    """Midpoints at many quantiles of both samples, dense in the tails."""
    levels = np.concatenate([np.geomspace(1 / (len(absent) + 1), 0.05, 40), np.linspace(0.06, 0.5)])
    levels = np.concatenate([levels, 1 - levels])
    grid = np.unique(np.concatenate([np.quantile(s, levels) for s in (absent, present)]))
    if len(grid) == 1:
        return grid
    return np.unique(np.concatenate([(grid[1:] + grid[:-1]) / 2, grid]))


def _above(scores: Floats, thresholds: Floats) -> NDArray[np.int64]:
    return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")


def _log_ratio(numerator: Floats, denominator: Floats) -> Floats:
    positive = numerator > 0
    with np.errstate(divide="ignore"):
        ratio = np.log(np.where(positive, numerator, 1.0)) - np.log(denominator)
    return np.where(positive, ratio, -np.inf)


def _finite_order(scores: Floats) -> Floats:
    """Infinite scores (a transcript possible on one dataset only) become very large ones."""
    if np.isnan(scores).any():
        raise ConfigurationError("scores must be numbers. Got NaN: the score is not defined there.")
    return np.clip(scores, -1e300, 1e300)


def _parts(runs: int) -> Iterator[tuple[int, int]]:
    """Chunks of runs, numbered from 1: part 0 is the pilot's."""
    for part, start in enumerate(range(0, runs, CHUNK), start=1):
        yield part, min(CHUNK, runs - start)


# ---------------------------------------------------------------------------- binomial bounds


def lower(successes: ArrayLike, trials: int, alpha: float) -> Floats:
    """Return the p at which ``successes`` or more of ``trials`` have probability ``alpha``.

    The true probability is below it with probability at most ``alpha``, whatever it is: the bound
    of Clopper and Pearson (1934) is exact, and takes no prior.
    """
    k = _checked(successes, trials, alpha)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), trials - k + 1, alpha), 0.0)


def upper(successes: ArrayLike, trials: int, alpha: float) -> Floats:
    """Return the p at which ``successes`` or fewer of ``trials`` have probability ``alpha``.

    The true probability is above it with probability at most ``alpha``, as for `lower`.
    """
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
