"""Private linear regression, ridge, Huber regression for heavy-tailed targets, and medians."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from winsor.core.checks import at_least, positive
from winsor.core.contract import ConfigurationError
from winsor.planning.shared_budget import PrivacyBudget
from winsor.tables.linear.base import PrivateLinearModel, theta_parts
from winsor.tables.losses import Absolute, Huber, Loss, Squared
from winsor.tables.refused_tables import as_targets, known_table
from winsor.tables.units import Unit

Array = NDArray[np.float64]


class PrivateRegressor(RegressorMixin, PrivateLinearModel):
    """What the regressors share: public scaling of the target."""

    target_range: tuple[float, float] | None
    threshold: float | None
    statistics_: Any
    """What ``method="suffstats"`` released."""

    def fit(self, X: ArrayLike, y: ArrayLike, unit: Unit | None = None) -> Self:
        """Fit to all rows of ``X`` within the budget; with ``unit``, which says whose each row is,
        to one row of each person, who is then protected with all rows."""
        X, y = self._check_table(X, y), self._targets(y)
        return self._fit_target(X, y, resume=False, unit=unit)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Continue with further records, spending ``epsilon`` anew; ``epsilon_`` composes all
        calls, as if every record were in every call."""
        self._check_continues()
        X = self._check_table(X, y, reset=not hasattr(self, "coef_"))
        return self._fit_target(X, self._targets(y), resume=True)

    def regularisation_path(self, alphas: ArrayLike) -> list[tuple[float, Array, float]]:
        """Return (alpha, coef, intercept) for each of ``alphas``, after a fit with ``"suffstats"``.

        Solved from the statistics that the fit released: it costs nothing.
        """
        check_is_fitted(self)
        if not hasattr(self, "statistics_"):
            raise ConfigurationError(
                'method must be "suffstats" for a regularisation path: only then a fit releases '
                f"what it is solved from. Got {self.method!r} instead."
            )
        kept, found = (self.coef_, self.intercept_), []
        unit = 1.0 if self.feature_bound is None else 1 / self.feature_bound
        for alpha in np.atleast_1d(np.asarray(alphas, dtype=np.float64)).tolist():
            self._keep_parameters(self.statistics_.theta(at_least("alpha", alpha, 0)), unit)
            found.append((alpha, self.coef_, self.intercept_))
        self.coef_, self.intercept_ = kept
        return found

    def _fit_target(self, X: Any, y: Any, resume: bool, unit: Unit | None = None) -> Self:
        centre, scale = self._target_units()
        return self._fit(X, (y - centre) / scale, self._loss(scale), resume, unit=unit)

    def _targets(self, y: Any) -> Array:
        """Targets, the middle of the public range where there is none."""
        return as_targets(y, self._target_units()[0])

    def _target_units(self) -> tuple[float, float]:
        """(centre, half width) of the public target range: targets count as (y - c)/h inside."""
        if self.target_range is None:
            return 0.0, 1.0
        try:
            low, high = (float(value) for value in self.target_range)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"target_range must be a pair (low, high). Got {self.target_range!r} instead."
            ) from error
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise ConfigurationError(
                f"target_range must be finite with low < high. Got {self.target_range!r} instead."
            )
        return (low + high) / 2, (high - low) / 2

    def _loss(self, scale: float) -> Loss:
        return Squared()

    def _keep_parameters(self, theta: Array, unit: float) -> None:
        weights, intercept = theta_parts(theta, bool(self.fit_intercept))
        centre, scale = self._target_units()
        self.coef_ = weights * unit * scale
        self.intercept_ = float(intercept) * scale + centre

    def predict(self, X: ArrayLike) -> Array:
        """Return predicted targets."""
        check_is_fitted(self)
        X = known_table(self, X, accept_sparse="csr")
        X = self._winsorised(X)
        return safe_sparse_dot(X, self.coef_, dense_output=True) + self.intercept_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # How well it does depends on the budget and the number of records, by design.
        tags.regressor_tags.poor_score = True
        return tags


class PrivateLinearRegression(PrivateRegressor):
    """Least squares with a certified (epsilon, delta) guarantee.

    Minimises the mean of (x w + b - y)^2 / 2. Parameters as in `PrivateLogisticRegression`, without
    ``alpha``, and

    target_range
        Public (low, high) in which most targets lie: inside, targets count as (y - centre) divided
        by half the width. It sets the scale that the defaults expect; targets beyond it are not
        cut, their gradients are clipped like any other. The default method needs none: it learns
        where the targets are, in any unit, and fits the level of the prediction by a heavy-tailed
        mean of the residuals. For the bulk of heavy-tailed targets see `PrivateHuberRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((5000, 3))
    >>> y = 10 + X @ [1.0, -2.0, 0.5] + rng.standard_t(3, size=5000)
    >>> model = PrivateLinearRegression(epsilon=1.0, target_range=(5, 15), random_state=0).fit(X, y)
    >>> bool(np.abs(model.coef_ - [1.0, -2.0, 0.5]).max() < 0.1), bool(model.epsilon_ <= 1.0)
    (True, True)
    """

    alpha = 0.0

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: Any = "whitened",
        fit_intercept: bool = True,
        feature_bound: float | None = None,
        target_range: tuple[float, float] | None = None,
        bounds: Any = None,
        noise_multiplier: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())


class PrivateRidge(PrivateRegressor):
    """Ridge regression with a certified (epsilon, delta) guarantee.

    Minimises the mean of (x w + b - y)^2 / 2 plus alpha/2 |w|^2, both in the units of
    ``feature_bound`` and ``target_range``. The penalty is applied outside the private part.
    Parameters as in `PrivateLinearRegression`, and ``alpha``. ``method="suffstats"`` releases X'X,
    X'y and y'y once and solves in closed form; `regularisation_path` is free afterwards.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: Any = "whitened",
        alpha: float = 1e-3,
        fit_intercept: bool = True,
        feature_bound: float | None = None,
        target_range: tuple[float, float] | None = None,
        bounds: Any = None,
        noise_multiplier: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())


class PrivateHuberRegressor(PrivateRegressor):
    """Regression with Huber's loss, for heavy-tailed targets, with a certified guarantee.

    Residuals beyond ``threshold`` (in the units of y) count linearly, so that a few enormous
    targets neither steer the fit nor use up the clipping bound. Parameters as in `PrivateRidge`,
    and ``threshold``; None takes a quarter of the half width of ``target_range``, or without one
    follows the released scale of y (with the other methods than ``"whitened"``: 1).
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: Any = "whitened",
        threshold: float | None = None,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        feature_bound: float | None = None,
        target_range: tuple[float, float] | None = None,
        bounds: Any = None,
        noise_multiplier: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    def _loss(self, scale: float) -> Loss:
        if self.threshold is None:
            return Huber(1.0 if self.target_range is None else 0.25)
        return Huber(positive("threshold", self.threshold) / scale)


class PrivateMedianRegressor(PrivateRegressor):
    """Regression to the median (absolute errors), for heavy-tailed targets, certified.

    Minimises the mean of |x w + b - y| plus alpha/2 |w|^2, in the units of ``target_range``. Every
    gradient has the length of its row whatever the target is. Parameters as in `PrivateRidge`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: Any = "flat",
        alpha: float = 0.0,
        fit_intercept: bool = True,
        feature_bound: float | None = None,
        target_range: tuple[float, float] | None = None,
        noise_multiplier: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    def _loss(self, scale: float) -> Loss:
        return Absolute()
