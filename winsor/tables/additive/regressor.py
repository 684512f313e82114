"""Additive regression: sums of shape functions under five losses."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from winsor.core.checks import choice
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.shared_budget import PrivacyBudget
from winsor.tables.additive.base import PrivateAdditiveModel
from winsor.tables.additive.losses import FARTHEST, Gamma, Huber, Loss, Poisson, Squared
from winsor.tables.additive.rows import Table
from winsor.tables.additive.units import Units, positive_column, units_of
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.refused_tables import as_targets

Array = NDArray[np.float64]

LOSSES = ("squared", "huber", "poisson", "gamma")
HUBER = 1.345  # 95 % efficient for normal residuals, in units of their spread


class PrivateAdditiveRegressor(RegressorMixin, PrivateAdditiveModel):
    """A sum of shape functions, one per feature, with a certified (epsilon, delta) guarantee.

    Features and target may be in any units: their distributions are learnt within the budget (a
    share of 12 %), shape functions bend at knots of equal mass, and values beyond the outermost
    knots count as there. Target values are cut only through their residuals, at a private balance
    of bias and noise.

    Parameters
    ----------
    epsilon, delta
        The budget of one `fit`. ``delta=None`` means 1e-5, or 1/(2n) if that is smaller.
    loss
        ``"squared"``; ``"huber"`` for the bulk rather than the mean of heavy-tailed targets;
        ``"poisson"`` for counts and ``"gamma"`` for positive amounts, both with a log link.
    target
        ``"raw"``, or ``"log"`` to model log(1 + y) of amounts that span orders of magnitude (the
        prediction is then the exponential of the mean logarithm, minus 1).
    interactions
        At most so many pairs of features get a surface of their own, if private scores say that
        they interact (at a price: 7 % of the budget, and the noise of more terms).
    bounds, target_bounds
        Public bounds where known: None, a pair, or for ``bounds`` a pair or None per feature.
    relation, random_state, allow_large_delta, budget
        As in `winsor.tables.PrivateLogisticRegression`.

    Notes
    -----
    Every release is Gaussian, of all rows, and in ``ledger_``; ``guarantee_`` composes them all.
    The number of rows is public; so is nothing else.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 100, size=(20_000, 2))
    >>> y = 500 * np.sin(X[:, 0] / 15) + 5 * X[:, 1] + 50 * rng.standard_normal(20_000)
    >>> model = PrivateAdditiveRegressor(epsilon=1.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), bool(model.epsilon_ <= 1.0)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        loss: str = "squared",
        target: str = "raw",
        interactions: int = 3,
        bounds: Any = None,
        target_bounds: tuple[float, float] | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.loss = loss
        self.target = target
        self.interactions = interactions
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.relation = relation
        self.random_state = random_state
        self.allow_large_delta = allow_large_delta
        self.budget = budget

    def fit(self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None) -> Self:
        """Fit to all rows within the budget. ``exposure`` multiplies the mean of a log link."""
        self._prepare()
        table, y = self._check_table(X, y)
        values = self._values(as_targets(column_or_1d(y, warn=True)))
        others, bounds = values[:, None], self._value_bounds()
        if exposure is not None:
            if self.loss not in ("poisson", "gamma"):
                raise ConfigurationError(
                    'exposure must go with loss="poisson" or "gamma", whose means it multiplies. '
                    f"Got loss={self.loss!r} instead."
                )
            others = np.c_[others, positive_column("exposure", exposure, len(table))]
            bounds.append(None)
        data = (table, others, None)
        self._fit(Table(table, others), table.shape[1], bounds, self._loss, data)
        return self

    def _prepare(self, classes: Any = None) -> tuple[str, ...]:
        """Check what was asked for before rows are looked at."""
        choice("loss", self.loss, LOSSES)
        choice("target", self.target, ("raw", "log"))
        if classes is not None:
            raise ConfigurationError(f"classes must be None for a regression. Got {classes!r}.")
        return ()

    def _value_bounds(self) -> list[Any]:
        return [self._target_bounds()]

    def _values(self, y: Array) -> Array:
        if self.loss in ("poisson", "gamma") or self.target == "log":
            if self.loss in ("poisson", "gamma") and self.target == "log":
                raise ConfigurationError(
                    f'target must be "raw" for loss={self.loss!r}, which has a log link of its '
                    'own. Got "log" instead.'
                )
            if (y < 0).any():
                raise ConfigurationError(
                    "y must not be negative for a log link or a log target. Got negative values "
                    "instead. Shift y by a public constant, or use loss='huber'."
                )
        return np.log1p(y) if self.target == "log" else y

    def _target_bounds(self) -> Any:
        if self.target_bounds is None or self.target == "raw":
            return self.target_bounds
        low, high = self.target_bounds
        return float(np.log1p(low)), float(np.log1p(high))

    def _loss(self, others: Array, found: list[Distribution]) -> Loss:
        """The loss in private units, which are kept for `predict`."""
        linked = self.loss in ("poisson", "gamma")
        self._units = units = units_of(found, linked)
        y = (others[:, 0] - units.centre) / units.scale
        if self.loss == "squared":
            return Squared(y)
        if self.loss == "huber":
            return Huber(y, clip=HUBER, longest=HUBER)
        offset = np.log(others[:, 1]) if others.shape[1] > 1 else np.zeros(len(y))
        if self.loss == "gamma":
            return Gamma(y, offset)
        return Poisson(y, offset, clip=max(2.0, units.high))

    def _score_unit(self) -> float:
        return 1.0 if self.loss in ("poisson", "gamma") else float(self._units.scale)

    def predict(self, X: ArrayLike, exposure: ArrayLike | None = None) -> Array:
        """Predicted targets, within the released range of y; with a log link, means for this
        ``exposure`` (1 by default)."""
        scores = self._scores(X)[:, 0]
        units: Units = self._units
        if self.loss in ("poisson", "gamma"):
            means = np.clip(units.scale * np.exp(np.clip(scores, -FARTHEST, FARTHEST)), *units.ends)
            if exposure is None:
                return means
            return means * positive_column("exposure", exposure, len(means))
        values = np.clip(units.centre + units.scale * scores, *units.ends)
        return np.expm1(np.minimum(values, 700.0)) if self.target == "log" else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # How well it does depends on the budget and the number of records, by design.
        tags.regressor_tags.poor_score = True
        return tags
