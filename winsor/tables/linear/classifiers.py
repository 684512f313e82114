"""Private linear classifiers: logistic regression, binary and multinomial, and a linear SVC."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.utils.extmath import safe_sparse_dot, softmax
from sklearn.utils.validation import check_is_fitted

from winsor.core.contract import ConfigurationError
from winsor.planning.shared_budget import PrivacyBudget
from winsor.tables.linear.base import PrivateLinearModel, theta_parts
from winsor.tables.losses import Hinge, Logistic, Loss, Softmax
from winsor.tables.refused_tables import as_labels, known_table
from winsor.tables.units import Unit

Array = NDArray[np.float64]


class PrivateClassifier(LinearClassifierMixin, PrivateLinearModel):
    """What the classifiers share: parameters, scores, tags."""

    classes_: NDArray[Any]

    def _keep_parameters(self, theta: Array, unit: float) -> None:
        weights, intercept = theta_parts(theta, bool(self.fit_intercept))
        self.coef_ = np.atleast_2d(weights.T * unit)
        self.intercept_ = np.atleast_1d(intercept).astype(np.float64)

    def decision_function(self, X: ArrayLike) -> Array:
        """Return scores: (n,) for two classes, (n, classes) for more."""
        check_is_fitted(self)
        X = known_table(self, X, accept_sparse="csr")
        scores = safe_sparse_dot(self._winsorised(X), self.coef_.T, dense_output=True)
        scores = scores + self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # How well it does depends on the budget and the number of records, by design.
        tags.classifier_tags.poor_score = True
        return tags


class PrivateLogisticRegression(PrivateClassifier):
    """Logistic regression with a certified (epsilon, delta) guarantee.

    Minimises mean cross-entropy + alpha/2 |w|^2; more than two classes use the softmax.

    Parameters
    ----------
    epsilon, delta, relation, random_state, allow_large_delta, budget
        The budget and the secrecy of one `fit`: see `winsor.tables.estimator.PrivateEstimator`.
    method
        ``"whitened"`` (the default: ranges and X'X learnt within the budget, then a few clipped
        steps), ``"flat"`` (DP-SGD), ``"averaged"``, ``"restarted"``, ``"simple"``,
        ``"iterative"``, ``"robust_gd"``; the name of any clipping rule (``"automatic"``); a rule;
        or one of the classes with options, such as ``FlatDescent(max_grad_norm=0.5, epochs=30,
        batch_size=200)``, whose options a grid search reaches as ``method__max_grad_norm``.
    alpha
        Ridge penalty on the weights.
    fit_intercept
        Whether to learn an intercept.
    feature_bound
        Public bound on the norm of a row; rows count as x / feature_bound inside. ``"whitened"``
        and ``"flat"`` need none. Methods whose parameters come from theorems need it, or these
        parameters by hand.
    bounds
        Public bounds of the columns for ``"whitened"``: a pair for all, or a pair or None for each.
        What is not given is learnt within the budget.
    noise_multiplier
        Overrides the calibration: noise over sensitivity. ``epsilon_`` is what it really spends.

    Notes
    -----
    ``guarantee_`` certifies all records of the tables given to `fit` or `partial_fit`, their number
    and the set of class labels being public. Every further fit of the same records (each fold and
    setting of a grid search) spends its own budget; with ``budget=`` they register, and
    `winsor.tables.total_guarantee` adds them up.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((5000, 3))
    >>> y = (X[:, 0] + 0.3 * rng.standard_normal(5000) > 0).astype(int)
    >>> model = PrivateLogisticRegression(epsilon=1.0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), bool(model.epsilon_ <= 1.0)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: Any = "whitened",
        alpha: float = 0.0,
        fit_intercept: bool = True,
        feature_bound: float | None = None,
        bounds: Any = None,
        noise_multiplier: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        unit: Unit | None = None,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Fit to all rows of ``X`` within the budget; with ``unit``, which says whose each row is,
        to one row of each person, who is then protected with all rows. ``classes`` are public;
        None reads them off ``y``."""
        X = self._check_table(X, y)
        self.classes_, codes, condition = as_labels(y, classes)
        conditions = (condition,)
        return self._fit(X, codes.astype(np.float64), self._loss(), False, conditions, unit)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Continue with further records, spending ``epsilon`` anew.

        ``epsilon_`` composes all calls, as if every record were in every call; if the records of
        the calls are disjoint, each record's own loss is that of its call alone.
        """
        first = not hasattr(self, "classes_")
        self._check_continues()
        X = self._check_table(X, y, reset=first)
        if first and classes is None:
            raise ConfigurationError(
                "classes must be passed on the first call to partial_fit. Got None instead."
            )
        known = first or classes is None or np.array_equal(np.unique(classes), self.classes_)
        if not known:
            raise ConfigurationError(
                f"classes must be those of the first call, {self.classes_}. Got {classes!r} "
                "instead. Leave them out."
            )
        given = classes if first else self.classes_
        self.classes_, codes, condition = as_labels(y, given)
        loss = self._loss()
        return self._fit(X, codes.astype(np.float64), loss, resume=True, conditions=(condition,))

    def _loss(self) -> Loss:
        count = len(self.classes_)
        return Logistic() if count == 2 else Softmax(count)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return (n, classes) probabilities."""
        check_is_fitted(self)
        scores = self.decision_function(X)
        return softmax(np.c_[-scores / 2, scores / 2] if scores.ndim == 1 else scores)

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return (n, classes) logarithms of probabilities."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))


class PrivateLinearSVC(PrivateClassifier):
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

    def fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Fit to all rows of ``X`` within the budget. ``classes`` are public; None reads them off
        ``y``."""
        X = self._check_table(X, y)
        self.classes_, codes, condition = as_labels(y, classes)
        if len(self.classes_) != 2:
            # The first words are those that scikit-learn's own checks look for.
            raise ConfigurationError(
                "Only binary classification is supported. The type of the target is multiclass: y "
                f"must hold two classes. Got {len(self.classes_)} instead. Use "
                "PrivateLogisticRegression."
            )
        return self._fit(X, codes.astype(np.float64), Hinge(), conditions=(condition,))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
