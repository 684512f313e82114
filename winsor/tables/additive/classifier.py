"""Additive classification: log-odds as sums of shape functions."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin

from winsor.core.contract import ConfigurationError
from winsor.core.ledger.shared_budget import PrivacyBudget
from winsor.tables.additive.base import PrivateAdditiveModel
from winsor.tables.additive.losses import Logistic
from winsor.tables.additive.rows import Table
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.refused_tables import refuse_no_classes

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
        self.epsilon = epsilon
        self.delta = delta
        self.interactions = interactions
        self.bounds = bounds
        self.relation = relation
        self.random_state = random_state
        self.allow_large_delta = allow_large_delta
        self.budget = budget

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to all rows within the budget."""
        table, y = self._check_table(X, y)
        refuse_no_classes(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise ConfigurationError(
                f"y must hold at least two classes. Got one class, {self.classes_}, instead."
            )
        labels = codes.astype(np.float64)
        condition = "the classes are public: they were read off y"
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
        return ("the classes are public: they were given",)

    def _value_bounds(self) -> list[Any]:
        return []

    def _values(self, y: Array) -> Array:
        """Labels as their numbers."""
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if (self.classes_[codes] != y).any():
            raise ConfigurationError(
                f"targets must be among the classes {self.classes_.tolist()}. Got others. Drop "
                "such rows before, by a rule that looks at one row at a time."
            )
        return codes.astype(np.float64)

    def _loss(self, values: Array, _: list[Distribution]) -> Logistic:
        return Logistic(values[:, 0], len(self.classes_))

    def decision_function(self, X: ArrayLike) -> Array:
        """Log-odds of the second class; with more than two classes, a score for each."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> Array:
        """(n, classes) probabilities."""
        scores = self._scores(X)  # refuses a model that was not fitted
        if len(self.classes_) > 2:
            return softmax(scores, axis=1)
        second = expit(scores[:, 0])
        return np.c_[1 - second, second]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most likely class."""
        chances = self.predict_proba(X)
        return np.asarray(self.classes_)[np.argmax(chances, axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags
