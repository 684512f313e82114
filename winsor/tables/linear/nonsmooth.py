"""Linear models whose loss has a kink: the support vector classifier and median regression.

Their subgradients are bounded but not continuous: Hoelder exponent 0, paper 4's non-smooth case
(Theorem 7), which ``method="averaged"`` then takes by itself. `PrivateLinearModel` does the rest.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.utils.multiclass import type_of_target

from winsor.core.contract import ConfigurationError
from winsor.core.ledger.shared_budget import PrivacyBudget
from winsor.tables.glm_losses import Absolute, Hinge, Loss
from winsor.tables.linear.base import PrivateLinearModel, theta_parts
from winsor.tables.linear.regression import PrivateRegressor
from winsor.tables.ranges.refused_tables import refuse_no_classes

Array = NDArray[np.float64]


class PrivateLinearSVC(LinearClassifierMixin, PrivateLinearModel):
    """Linear support vector classifier for two classes, with a certified guarantee.

    Minimises the mean of max(0, 1 - y (x w + b)), y = -1 or 1, plus alpha/2 |w|^2. Parameters as in
    `PrivateLogisticRegression`; methods whose theorems need a smooth loss (``"restarted"``,
    ``"simple"``, ``"iterative"``) ask for their parameters by hand.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((5000, 3))
    >>> y = (X[:, 0] + 0.3 * rng.standard_normal(5000) > 0).astype(int)
    >>> model = PrivateLinearSVC(epsilon=1.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85), bool(model.epsilon_ <= 1.0)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: Any = "flat",
        alpha: float = 0.0,
        fit_intercept: bool = True,
        feature_bound: float | None = None,
        noise_multiplier: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to all rows of ``X`` within the budget."""
        X, y = self._check_table(X, y, reset=True)
        refuse_no_classes(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            # The first words are those that scikit-learn's own checks look for.
            raise ConfigurationError(
                "Only binary classification is supported. The type of the target is "
                f"{type_of_target(y)}: y must hold two classes. Got {len(self.classes_)} (one "
                "class or more than two) instead. Use PrivateLogisticRegression."
            )
        condition = "the classes are public: they were read off y"
        return self._fit(X, codes.astype(np.float64), Hinge(), conditions=(condition,))

    def _keep_parameters(self, theta: Array, unit: float) -> None:
        weights, intercept = theta_parts(theta, bool(self.fit_intercept))
        self.coef_ = np.atleast_2d(weights.T * unit)
        self.intercept_ = np.atleast_1d(intercept).astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        # How well it does depends on the budget and the number of records, by design.
        tags.classifier_tags.poor_score = True
        return tags


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
