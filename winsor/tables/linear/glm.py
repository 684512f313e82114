"""Poisson and Gamma regression with a log link, exposures, and intervals that count the noise.

    mean of y_i = exposure_i exp(x_i w + b)

    rows      features in units of a private spread; rows far from the private centre have no
              vote: to leave rows out by their features does not bias the rest
    rough     accelerated descent on cut residuals, in units of a private mean
    look      a private histogram of residuals says where to cut, squares give the dispersion,
              Fisher information the curvature (`information.py`)
    newton    preconditioned steps; the mean of the later ones, whose noise averages

Residuals are y - mu (Poisson) and y/mu - 1 (Gamma); both are zero in the mean at the truth, up to
the cut, which lies at twice the largest residual that was seen.

Guarantee
---------
A row is (x_i, 1) of length at most `ScoreRows.reach`, its residual is cut to c: sums move by c
times that reach when a record joins or leaves, twice that when it is replaced. Every release is
Gaussian and in the ledger.

References
----------
McCullagh & Nelder 1989, chapter 9 (quasi-likelihood); the noise term is this library's.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from winsor.core.arithmetic.rows import products
from winsor.core.checks import probability
from winsor.core.contract import Sensitivity
from winsor.planning.shared_budget import PrivacyBudget
from winsor.planning.shares import Part, Shares
from winsor.tables.descent import mean_of_last
from winsor.tables.estimator import PrivateEstimator
from winsor.tables.inputs import as_bounds, as_exposure, within
from winsor.tables.linear import residual_cut
from winsor.tables.linear.score_rows import (
    ScoreRows,
    information_sensitivity,
    release_information,
    release_squares,
    square_sensitivity,
)
from winsor.tables.losses import FARTHEST
from winsor.tables.ranges.bins import Bins
from winsor.tables.ranges.distribution import Distribution, range_of_means
from winsor.tables.ranges.zoom import Zoom
from winsor.tables.refused_tables import as_targets, known_table, read_table

Array = NDArray[np.float64]

SHARES = {
    "ranges": 0.08, "rough": 0.18, "residuals": 0.02, "squares": 0.03, "information": 0.20,
    "newton": 0.49,
}  # fmt: skip
STEPS = {"rough": 150, "newton": 60}
KEPT = 45
"""Newton steps, counted from the end, whose mean is the estimate."""
DAMPING = 0.25
"""Damping of Newton steps: iterates that jump with the noise of one release are biased, for the
link is curved; damped ones wander less, and their mean is as precise."""
MOMENTUM = 0.9
_GRADIENT = Sensitivity.per_sample(1.0, "yardstick of a descent")


def parts_of(zoom: Zoom) -> dict[str, Part]:
    """Return everything that a fit releases, in shares of its budget."""
    whole = {
        "ranges": zoom.sensitivity,
        "rough": _GRADIENT,
        "residuals": residual_cut.SENSITIVITY,
        "squares": square_sensitivity(1.0),
        "information": information_sensitivity(1.0, 1.0),
        "newton": _GRADIENT,
    }
    steps = {name: STEPS.get(name, 1) for name in whole} | {"ranges": zoom.rounds}
    return {name: Part(each, steps[name], SHARES[name]) for name, each in whole.items()}


class PrivateLogLinkRegressor(RegressorMixin, PrivateEstimator, ABC):
    """Base of `PrivatePoissonRegressor` and `PrivateGammaRegressor`.

    Parameters
    ----------
    epsilon, delta, relation, random_state, allow_large_delta, budget
        As in `PrivateLogisticRegression`.
    bounds
        Public bounds of the features: None (learnt within the budget), a pair, or a pair or None
        per feature. Rows outside have no influence.
    level
        Confidence level of the intervals.

    Attributes
    ----------
    coef_, intercept_
        On the log scale, in the units of the features.
    coef_std_, intercept_std_
        Standard errors: the randomness of the rows and the noise of the releases together.
    coef_interval_, intercept_interval_
        (features, 2) and (2,) intervals at ``level``. A direction that the noise hides has a very
        wide one.
    dispersion_
        Variance of a row over what the model says: 1 for Poisson counts.
    """

    _heaviest: float
    """Weights of the information, in units of the mean, are cut here."""

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        bounds: Any = None,
        level: float = 0.95,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    # -- what differs: residuals r and weights m with Var r = phi m, both in units of the mean

    @abstractmethod
    def _residuals(self, y: Array, means: Array) -> Array: ...

    @abstractmethod
    def _weights(self, means: Array) -> Array: ...

    @abstractmethod
    def _dispersion(self, ratio: float, mean: float) -> float: ...

    @abstractmethod
    def _largest(self, y: Distribution, mean: float) -> float:
        """A generous first cut of residuals."""

    # -- fit

    def fit(self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None) -> Self:
        """Fit to all rows within the budget. ``exposure`` (positive) multiplies the means. Targets
        below 0 count as 0: use `PrivateHuberRegressor` for targets of both signs."""
        table, targets, periods = self._checked(X, y, exposure)
        n, features = table.shape
        known = as_bounds(self.bounds, features)
        if known is not None:
            known = np.concatenate([known, np.full((2, 2), np.nan)])
        bins = Bins(features + 2, 32, known)
        config = {"estimator": type(self).__name__, "n": n, "d": features}
        session = self._open(n, config, table, targets, periods)
        shares = session.shares(n, parts_of(bins.zoom))
        _, found = bins.release(np.c_[table, targets, periods], *shares["ranges"])
        rows = ScoreRows(table, found[:features], known)
        mean = _mean(found[-2]) / _mean(found[-1])
        self._means = range_of_means(found[-2], found[-1], mean)
        self._solve(rows, targets / mean, periods, self._largest(found[-2], mean), mean, shares)
        self.n_iter_ = sum(STEPS.values())
        return self._close(session, n, table)

    def _checked(self, X: Any, y: Any, exposure: Any) -> tuple[Array, Array, Array]:
        probability("level", self.level)
        table = read_table(self, X, y, ensure_min_samples=2)
        return table, as_targets(y).clip(min=0.0), as_exposure(exposure, len(table))

    def _solve(
        self, rows: ScoreRows, y: Array, exposure: Array, cut: float, mean: float, shares: Shares
    ) -> None:
        """``y`` is in units of ``mean`` per exposure; residuals are cut at ``cut`` at first."""

        def means(theta: Array) -> Array:
            scores = within(products(rows.values, theta), FARTHEST)
            return np.asarray(exposure * np.exp(scores))

        def residuals(theta: Array) -> Array:
            return np.where(rows.inside, self._residuals(y, means(theta)), 0.0)

        n, size = rows.values.shape
        half = STEPS["rough"] // 2
        rough = rows.pay(*shares["rough"], cut, STEPS["rough"])
        length = 2 * n * rows.reach**2

        def walk(theta: Array) -> Array:
            return theta + rough.release(rows.score(residuals(theta), cut)) / length

        theta = mean_of_last(np.zeros(size), walk, STEPS["rough"], STEPS["rough"] - half, MOMENTUM)
        counts = residual_cut.residual_counts(residuals(theta), *shares["residuals"])
        last_cut = 2 * residual_cut.largest_seen(counts)
        wide = min(last_cut, 6 * residual_cut.root_mean_square(counts))
        squares = release_squares(residuals(theta), wide, *shares["squares"])
        weights = np.where(rows.inside, self._weights(means(theta)), 0.0)
        information = release_information(
            rows.values, weights, self._heaviest, rows.reach, *shares["information"]
        )
        newton = rows.pay(*shares["newton"], last_cut, STEPS["newton"])

        def step(theta: Array) -> Array:
            gradient = newton.release(rows.score(residuals(theta), last_cut))
            return theta + DAMPING * information.steps(gradient)

        theta = mean_of_last(information.known(theta), step, STEPS["newton"], KEPT)
        ratio = max(squares, 0.0) / max(information.matrix[-1, -1], 1.0)
        covariance = information.covariance(ratio, newton.std * noise_of_mean())
        self._describe(rows, theta, covariance, mean)
        self.dispersion_ = self._dispersion(ratio, mean)

    def _describe(self, rows: ScoreRows, theta: Array, covariance: Array, mean: float) -> None:
        values, spread = rows.in_units(theta, covariance)
        errors = np.sqrt(np.diag(spread))
        reach = float(norm.ppf((1 + self.level) / 2))
        values[-1] += math.log(mean)
        intervals = np.c_[values - reach * errors, values + reach * errors]
        self.coef_, self.intercept_ = values[:-1], float(values[-1])
        self.coef_std_, self.intercept_std_ = errors[:-1], float(errors[-1])
        self.coef_interval_, self.intercept_interval_ = intervals[:-1], intervals[-1]
        self._ball = rows.ball

    def predict(self, X: ArrayLike, exposure: ArrayLike | None = None) -> Array:
        """Return means for this ``exposure`` (1 by default), within the released range of y; for a
        row outside the features' range, of the nearest one that had a vote."""
        check_is_fitted(self)
        table = known_table(self, X)
        scores = self._ball.nearest(table) @ self.coef_ + self.intercept_
        return np.exp(np.clip(scores, *np.log(self._means))) * as_exposure(exposure, len(table))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        # How well it does depends on the budget and the number of records, by design.
        tags.regressor_tags.poor_score = True
        return tags


class PrivatePoissonRegressor(PrivateLogLinkRegressor):
    """Poisson regression of counts (claims, visits) with private confidence intervals.

    Over-dispersed counts are welcome: the dispersion is estimated and widens the intervals.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(50_000, 2))
    >>> years = rng.uniform(0.2, 1.0, size=50_000)
    >>> claims = rng.poisson(years * np.exp(-1 + X @ [0.8, -0.5]))
    >>> model = PrivatePoissonRegressor(epsilon=1.0, bounds=(-1, 1), random_state=0)
    >>> model = model.fit(X, claims, exposure=years)
    >>> model.coef_.round(1).tolist(), bool(model.epsilon_ <= 1.0)
    ([0.8, -0.5], True)
    """

    _heaviest = 3.0

    def _residuals(self, y: Array, means: Array) -> Array:
        return y - means

    def _weights(self, means: Array) -> Array:
        return means

    def _dispersion(self, ratio: float, mean: float) -> float:
        return ratio * mean

    def _largest(self, y: Distribution, mean: float) -> float:
        return max(2.0, float(y.quantile(0.999)) / mean)


class PrivateGammaRegressor(PrivateLogLinkRegressor):
    """Gamma regression of positive amounts (claim sizes) with private confidence intervals.

    The weight of a row does not grow with its amount. For tails heavier than a Gamma's the cut of
    residuals lowers the intercept; intervals do not count that.
    """

    _heaviest = 1.0

    def _residuals(self, y: Array, means: Array) -> Array:
        return y / means - 1.0

    def _weights(self, means: Array) -> Array:
        return np.ones_like(means)

    def _dispersion(self, ratio: float, mean: float) -> float:
        return ratio

    def _largest(self, y: Distribution, mean: float) -> float:
        return 4.0


@functools.cache
def noise_of_mean() -> float:
    """Return deviation of the mean of the kept Newton iterates per unit of the noise of a release.

    Iterate t holds the noise of step s <= t with the weight DAMPING (1 - DAMPING)^(t - s).

    >>> 0.9 < noise_of_mean() * math.sqrt(KEPT) < 1.0
    True
    """
    steps = STEPS["newton"]
    weights = [
        sum(DAMPING * (1 - DAMPING) ** (t - s) for t in range(max(s, steps - KEPT), steps)) / KEPT
        for s in range(steps)
    ]
    return math.sqrt(math.fsum(weight**2 for weight in weights))


def _mean(found: Distribution) -> float:
    """Mean of a positive column; long empty cells at the end do not count in full."""
    values = found.quantile(np.linspace(0.0, 1.0, 65))
    values[-1] = min(values[-1], values[-2] + 4 * max(values[-2] - values[-3], 0.0))
    return max(float(np.mean((values[1:] + values[:-1]) / 2)), 1e-12)
