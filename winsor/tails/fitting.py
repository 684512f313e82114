"""What tail do these norms have? The fit behind `winsor.tails.fit`.

1. Look at the largest three quarters of the sample; if neither curve of `weibull.py` describes
   them (Anderson-Darling on the exceedances), at the largest half, quarter, ... until one does.
2. Fit theta and K by maximum likelihood, with and without a bend into a power law, and by
   regression of log(-log S) on log x; bootstrap for intervals, which average over the two curves
   so that a doubtful bend widens them.
3. Classify (`verdict.py`), add the Hill, moment and Pickands indices (`extremes.py`), and name the
   order of moment that the data do not contradict.

Paper 1's sub-Weibull(theta, K): P(|X| > t) <= 2 exp(-(t/K)^(1/theta)).

Fitting reads the norms themselves. On private norms the result is private: use public or
synthetic stand-ins, or the private monitor's histogram.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from winsor.core.checks import probability
from winsor.core.contract import ConfigurationError
from winsor.tails import extremes, weibull
from winsor.tails.points import (
    Floats,
    TailPoints,
    log_norms,
    normal_quantile,
    tail_line,
    tail_points,
)
from winsor.tails.verdict import Verdict, bend_critical, bend_weight, judge

FRACTIONS = (0.75, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01, 0.005, 0.0025, 0.001)
FEWEST = 100
"""A smaller fraction is tried only if it still holds this many norms."""

LEVELS: Floats = np.concatenate([np.linspace(0, 0.98, 50), 1 - np.geomspace(0.01, 1e-6, 30)])

MISFIT = 1.4
"""Anderson-Darling statistic above which a curve does not describe the exceedances. By simulation
with fitted parameters this is the 5 % point on straight tails and about the 1 % point on bent ones;
crossing it by chance costs some precision, as a smaller fraction is then used, and no more."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class TailFit:
    """The tail of a sample of norms.

    ``theta`` is the sub-Weibull index at the edge of the sample (depth log n). On a straight tail
    (``bend`` = 0) it is the index of the whole tail; on a bent one it holds at that depth only and
    grows beyond it.
    """

    n: int
    theta: Estimate
    K: Estimate
    """Scale of the fitted curve: S = exp(-(x/K)^(1/theta)) on a straight tail."""
    theta_regression: Estimate
    bend: float
    bend_statistic: float
    """Likelihood ratio statistic of the bend; compare `verdict.bend_critical`."""
    fraction: float
    misfit: float
    verdict: Verdict
    hill: extremes.Index
    moments: extremes.Index
    pickands: extremes.Index
    safe_moment: float
    """Largest p whose p-th moment may be assumed finite at the fit's confidence (one-sided)."""
    confidence: float
    straight: weibull.WeibullFit
    bent: weibull.WeibullFit
    points: TailPoints
    quantile_levels: Floats
    quantile_values: Floats
    """Quantiles of the whole sample, zeros included, at fixed levels."""

    @property
    def K_bound(self) -> float:
        """Smallest K with which the empirical tail obeys paper 1's bound at this theta."""
        return self.envelope(self.theta.value)

    @property
    def is_bent(self) -> bool:
        """Return whether the bent curve is used."""
        return self.bend_statistic > bend_critical(self.n)

    @property
    def curve(self) -> weibull.WeibullFit:
        """The fitted curve in use."""
        return self.bent if self.is_bent else self.straight

    @property
    def describes(self) -> bool:
        """False if no tail fraction was described well; then trust the plots more than theta."""
        return self.misfit <= MISFIT

    def envelope(self, theta: float) -> float:
        """Return the smallest K with which the tail's points obey 2 exp(-(t/K)^(1/theta))."""
        points = self.points
        survival = np.cumsum(points.weight) / points.size
        last = points.threshold - theta * float(np.log(np.log(2 / survival[-1])))
        inside = points.z - theta * np.log(np.log(2 / survival))
        return float(np.exp(max(float(inside.max()), last)))

    def body_quantile(self, probability: float) -> float:
        """Return the norm that a share ``probability`` of the sample does not exceed."""
        return float(np.interp(probability, self.quantile_levels, self.quantile_values))

    def moment(self, p: float) -> float:
        """Bound (E X^p)^(1/p) of the sample: norms below the tail count at its threshold."""
        points, top = self.points, float(self.points.z[0])
        above = float(points.weight @ np.exp(p * (points.z - top)))
        below = points.below * float(np.exp(p * (points.threshold - top)))
        return float(np.exp(top) * ((above + below) / points.size) ** (1 / p))

    def quantile(self, probability: float) -> float:
        """Return the norm exceeded with a given (small) probability under the fitted curve."""
        return weibull.quantile(self.curve, probability)


def fit(
    norms: ArrayLike, *, confidence: float = 0.95, repeats: int = 200, seed: int = 0
) -> TailFit:
    """Fit the upper tail of ``norms`` (any shape; zeros count as lying below the tail).

    Parameters
    ----------
    norms : per-sample gradient norms, or any non-negative sizes.
    confidence : level of every interval.
    repeats : bootstrap refits.
    seed : of the bootstrap; the fit is a deterministic function of its arguments.

    Examples
    --------
    >>> import numpy as np
    >>> norms = np.random.default_rng(0).weibull(2.0, size=4000)
    >>> print(fit(norms).verdict.tail)
    light
    """
    probability("confidence", confidence)
    if repeats < 20:
        raise ConfigurationError(f"repeats must be at least 20. Got {repeats!r} instead.")
    z, zeros = log_norms(norms)
    fraction, points, straight, bent, misfit = _select(z, zeros)
    statistic = max(0.0, 2 * (bent.loglik - straight.loglik))
    boot = _bootstrap(points, straight, bent, statistic, repeats, seed)
    is_bent, weight = statistic > bend_critical(points.size), bend_weight(statistic, points.size)
    curve = bent if is_bent else straight
    theta = _estimate(_index(curve, points.size), boot.theta, weight, confidence)
    slope, _ = tail_line(points, points.weight[None], np.array([points.below]))
    choice = extremes.choose_k(z)
    hill = extremes.hill(z, choice, confidence)
    moments = extremes.moments(z, choice, confidence)
    rival = hill if is_bent else moments
    return TailFit(
        n=z.size + zeros,
        theta=theta,
        K=_estimate(float(np.exp(curve.log_scale)), boot.scale, weight, confidence),
        theta_regression=_estimate(1 / float(slope[0]), (1 / boot.slopes,), 0.0, confidence),
        bend=curve.xi,
        bend_statistic=statistic,
        fraction=fraction,
        misfit=misfit,
        verdict=judge(*boot.theta, weight),
        hill=hill,
        moments=moments,
        pickands=extremes.pickands(z, choice, confidence),
        safe_moment=_safe_moment(bent, rival, confidence),
        confidence=confidence,
        straight=straight,
        bent=bent,
        points=points,
        quantile_levels=LEVELS,
        quantile_values=_quantiles(z, zeros),
    )


# --------------------------------------------------------------------------------- the steps


@dataclass(frozen=True)
class _Bootstrap:
    theta: tuple[Floats, Floats]  # straight, bent
    scale: tuple[Floats, Floats]
    slopes: Floats


def _select(
    z: Floats, zeros: int
) -> tuple[float, TailPoints, weibull.WeibullFit, weibull.WeibullFit, float]:
    """The largest fraction that a curve describes, or else the one described best."""
    n, best = z.size + zeros, None
    for fraction in FRACTIONS:
        if fraction < FRACTIONS[0] and fraction * n < FEWEST:
            break
        points = tail_points(z, zeros, fraction)
        straight = weibull.fit_weibull(points)
        bent = weibull.fit_bent(points, straight)
        misfit = _anderson_darling(z[z > points.threshold], points.threshold, bent)
        found = fraction, points, straight, bent, misfit
        if misfit <= MISFIT:
            return found
        if best is None or misfit < best[4]:
            best = found
    assert best is not None
    return best


def _anderson_darling(z: Floats, threshold: float, curve: weibull.WeibullFit) -> float:
    """A^2 of the exceedances against the fitted curve above the threshold."""
    depth = curve.depth(z) - curve.depth(np.array([threshold]))
    depth = np.clip(depth, 1e-12, 700.0)  # -log of uniform variables, increasing order reversed
    k = depth.size
    weights = 2 * np.arange(1, k + 1) - 1
    return float(-k - np.mean(weights * (np.log(-np.expm1(-depth[::-1])) - depth)))


def _index(curve: weibull.WeibullFit, n: float) -> float:
    log_theta, xi = np.asarray(curve.log_theta), np.asarray(curve.xi)
    return float(weibull.index_at_depth(log_theta, xi, np.log(n)))


def _bootstrap(
    points: TailPoints,
    straight: weibull.WeibullFit,
    bent: weibull.WeibullFit,
    statistic: float,
    repeats: int,
    seed: int,
) -> _Bootstrap:
    rng = np.random.default_rng(seed)
    depth = np.log(points.size)
    params, weight, below = weibull.bootstrap(points, straight, repeats, rng)
    theta, scale = np.exp(params[1]), np.exp(params[0])
    slopes, _ = tail_line(points, weight, below)
    if statistic < 1:  # the bend is at or near its boundary and carries little weight
        return _Bootstrap((theta, theta), (scale, scale), slopes)
    params, _, _ = weibull.bootstrap(points, bent, repeats, rng)
    bent_theta = weibull.index_at_depth(params[1], params[2], depth)
    return _Bootstrap((theta, bent_theta), (scale, np.exp(params[0])), slopes)


def _estimate(
    value: float, draws: tuple[Floats, ...], weight: float, confidence: float
) -> Estimate:
    """Percentile interval of the mixture of draws, the last with ``weight``; it holds the value."""
    shares = np.concatenate(
        [np.full(d.size, w / d.size) for d, w in zip(draws, (1 - weight, weight), strict=False)]
    )
    values = np.concatenate(draws)
    order = np.argsort(values)
    level = np.cumsum(shares[order])
    tail = (1 - confidence) / 2 * level[-1]
    low, high = values[order][np.searchsorted(level, [tail, level[-1] - tail])]
    return Estimate(value, min(float(low), value), max(float(high), value))


def _quantiles(z: Floats, zeros: int) -> Floats:
    rank = LEVELS * (z.size + zeros - 1) - zeros  # position among the positive norms, increasing
    values = np.exp(np.interp(rank, np.arange(z.size), z[::-1]))
    return np.where(rank < 0, 0.0, values)


def _safe_moment(bent: weibull.WeibullFit, rival: extremes.Index, confidence: float) -> float:
    """1 / (one-sided upper limit of gamma), rounded down to a tenth.

    The larger of two limits: that of the bent curve, and that of an index which does not know the
    curve (Hill's where the bend is real, the moment estimator's where it may not be).
    """
    one_sided, two_sided = normal_quantile(confidence), normal_quantile(0.5 + confidence / 2)
    reach = (rival.interval[1] - rival.gamma) * one_sided / two_sided
    high = max(bent.gamma + one_sided * bent.gamma_deviation(), rival.gamma + reach)
    return float(np.floor(10 / max(high, 1e-9)) / 10)
