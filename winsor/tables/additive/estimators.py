"""Additive regression and classification: sums of shape functions, one per feature."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin

from winsor.core.checks import choice
from winsor.core.contract import ConfigurationError
from winsor.planning.shared_budget import PrivacyBudget
from winsor.tables.additive.base import PrivateAdditiveModel
from winsor.tables.additive.fitting import Table
from winsor.tables.additive.knots import Units, units_of
from winsor.tables.inputs import positive_column
from winsor.tables.losses import (
    FARTHEST,
    GammaLoss,
    Huber,
    Logistic,
    Loss,
    PoissonLoss,
    Softmax,
    Squared,
)
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.refused_tables import GIVEN, as_labels, as_targets, read_table

Array = NDArray[np.float64]


class PrivateAdditiveClassifier(ClassifierMixin, PrivateAdditiveModel):
    """Log-odds as a sum of shape functions, with a certified (epsilon, delta) guarantee.

    Two classes have one score; more have one each (softmax). Parameters as in
    `PrivateAdditiveRegressor`. The set of class labels is public.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20_000, 2))
    >>> y = np.where(X[:, 0] ** 2 + 0.3 * rng.standard_normal(20_000) > 1, "out", "in")
    >>> model = PrivateAdditiveClassifier(epsilon=1.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85), bool(model.epsilon_ <= 1.0)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        interactions: int = 3,
        bounds: Any = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    def fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Fit to all rows within the budget. ``classes`` are public; None reads them off ``y``."""
        table = read_table(self, X, y, ensure_min_samples=2)
        self.classes_, codes, condition = as_labels(y, classes)
        labels = codes.astype(np.float64)
        rows = Table(table, labels[:, None])
        data = (table, np.empty((len(table), 0)), labels)
        self._fit(rows, table.shape[1], [], self._loss, data, (condition,))
        return self

    def _prepare(self, classes: Any = None) -> tuple[str, ...]:
        """Public ``classes``, where nobody may look for them."""
        given = [] if classes is None else list(classes)
        if len(set(given)) < 2:
            raise ConfigurationError(
                f"classes must list at least two public labels. Got {classes!r} instead."
            )
        self.classes_ = np.unique(given)
        return (GIVEN,)

    def _value_bounds(self) -> list[Any]:
        return []

    def _values(self, y: Array) -> Array:
        """Labels as their numbers."""
        return as_labels(y, self.classes_)[1].astype(np.float64)

    def _loss(self, values: Array, _: list[Distribution]) -> tuple[Loss, Array]:
        count = len(self.classes_)
        return Logistic() if count == 2 else Softmax(count), values[:, 0]

    def decision_function(self, X: ArrayLike) -> Array:
        """Return log-odds of the second class; with more than two classes, a score for each."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return (n, classes) probabilities."""
        scores = self._scores(X)  # refuses a model that was not fitted
        if len(self.classes_) > 2:
            return softmax(scores, axis=1)
        second = expit(scores[:, 0])
        return np.c_[1 - second, second]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class."""
        chances = self.predict_proba(X)
        return np.asarray(self.classes_)[np.argmax(chances, axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


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
    epsilon, delta, relation, random_state, allow_large_delta, budget
        As in `PrivateLogisticRegression`.
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
        self._store(locals())

    def fit(self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None) -> Self:
        """Fit to all rows within the budget. ``exposure`` multiplies the mean of a log link. With
        one, or a log target, targets below 0 count as 0."""
        self._prepare()
        table = read_table(self, X, y, ensure_min_samples=2)
        values = self._values(as_targets(y))
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
            y = np.maximum(y, 0.0)
        return np.log1p(y) if self.target == "log" else y

    def _target_bounds(self) -> Any:
        if self.target_bounds is None or self.target == "raw":
            return self.target_bounds
        low, high = self.target_bounds
        return float(np.log1p(low)), float(np.log1p(high))

    def _loss(self, others: Array, found: list[Distribution]) -> tuple[Loss, Array]:
        """The loss in private units, which are kept for `predict`."""
        linked = self.loss in ("poisson", "gamma")
        self._units = units = units_of(found, linked)
        y = (others[:, 0] - units.centre) / units.scale
        if self.loss == "squared":
            return Squared(), y
        if self.loss == "huber":
            return Huber(HUBER), y
        offset = np.log(others[:, 1:]) if others.shape[1] > 1 else np.zeros((len(y), 1))
        if self.loss == "gamma":
            return GammaLoss(offset), y
        return PoissonLoss(offset, max(2.0, units.high)), y

    def _score_unit(self) -> float:
        return 1.0 if self.loss in ("poisson", "gamma") else float(self._units.scale)

    def predict(self, X: ArrayLike, exposure: ArrayLike | None = None) -> Array:
        """Return predicted targets, within the released range of y; with a log link, means for this
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
