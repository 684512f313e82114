"""What the estimators share: checking input, choosing a method, one private fit, what is kept.

Learned attributes: ``coef_``, ``intercept_``, ``n_iter_`` (private steps), ``epsilon_`` and
``delta_`` (certified, for everything in ``ledger_``), ``guarantee_``, ``ledger_``; and
``trajectory_``, if the method was told to ``record``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from winsor import rules
from winsor.core.checks import as_delta, as_relation, at_least, choice, nearest_first, positive
from winsor.core.contract import ConfigurationError, Guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.ledger.shared_budget import settings_of
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import key_for
from winsor.planning.budget import Target
from winsor.rules.rule import Rule
from winsor.tables.glm_losses import Design, Loss
from winsor.tables.linear.averaged import AveragedDescent
from winsor.tables.linear.bounded import BoundedSolution, BoundedTask
from winsor.tables.linear.flat import FlatDescent
from winsor.tables.linear.iterative import Iterative
from winsor.tables.linear.options import Method
from winsor.tables.linear.restarted import Restarted
from winsor.tables.linear.robust_gd import RobustGD
from winsor.tables.linear.ruled import Ruled
from winsor.tables.linear.simple import Simple
from winsor.tables.linear.sufficient import SufficientStatistics
from winsor.tables.linear.task import Session
from winsor.tables.linear.units import SAID, Unit, one_row_each
from winsor.tables.linear.whitened import Whitened
from winsor.tables.ranges.bounds import as_bounds
from winsor.tables.ranges.refused_tables import in_own_words
from winsor.tables.surroundings import begin_fit, count_fit

Array = NDArray[np.float64]

METHODS: dict[str, type[Method]] = {
    "whitened": Whitened,
    "suffstats": SufficientStatistics,
    "flat": FlatDescent,
    "averaged": AveragedDescent,
    "restarted": Restarted,
    "simple": Simple,
    "iterative": Iterative,
    "robust_gd": RobustGD,
}


class Recorded(NamedTuple):
    """The parameters after so many private steps, for methods with ``record``."""

    step: int
    coef: Array
    intercept: Any


_OTHERS = "DP-SGD is 'flat'. A clipping rule or its name (automatic, quantile, ...) will do too."


def method_of(method: Any) -> Method:
    """A `Method`: by its name, by the name of a clipping rule, from a rule, or as it is."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        if method not in METHODS and not rules.is_known(method):
            choice("method", method, nearest_first(method, METHODS), _OTHERS)
        return METHODS[method]() if method in METHODS else Ruled(method)
    if isinstance(method, Rule):
        return Ruled(method)
    raise ConfigurationError(
        f"method must be one of {', '.join(METHODS)}, the name of a clipping rule, a rule, or a "
        f"Method such as FlatDescent(max_grad_norm=0.5). Got {method!r} instead."
    )


class PrivateLinearModel(BaseEstimator, ABC):
    """Base of the estimators. Subclasses give the loss and translate targets."""

    epsilon: float
    delta: float | None
    method: Any
    alpha: float
    fit_intercept: bool
    feature_bound: float | None
    noise_multiplier: float | None
    relation: str
    random_state: Any
    allow_large_delta: bool
    _theta: Array
    feature_range_: Array
    """(d, 2): where ``method="whitened"`` winsorised the columns."""
    coef_: Array
    intercept_: Any
    trajectory_: list[Recorded]
    ledger_: Ledger
    guarantee_: Guarantee

    def _store(self, given: dict[str, Any]) -> None:
        """Keep the arguments of a constructor as they are, which is all that it may do."""
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def _check_continues(self) -> None:
        if not method_of(self.method).continues:
            raise ConfigurationError(
                'method must be "whitened", "flat" or "averaged" for partial_fit. Got '
                f"{self.method!r} instead."
            )

    def _check_table(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        refuse_odd_sparse(X)
        with in_own_words(X):
            features, targets = validate_data(
                self,
                X,
                y,
                reset=reset,
                accept_sparse="csr",
                dtype=np.float64,
                order="C",
                y_numeric=False,
                ensure_min_samples=2,
            )
        return features, targets

    def _of_units(self, X: Any, y: Any, unit: Unit | None) -> tuple[Any, Any, tuple[str, ...]]:
        """The rows that a fit uses, and what the guarantee must say of them."""
        if unit is None:
            return X, y, ()
        kept = one_row_each(X.shape[0], unit, key_for(self.random_state, 0, "rows of units"))
        return X[kept], y[kept], (SAID,)

    def _fit(
        self,
        X: Any,
        y: Array,
        loss: Loss,
        resume: bool = False,
        conditions: tuple[str, ...] = (),
    ) -> Self:
        """One private fit of ``loss``; with ``resume``, on from the present parameters and in the
        same ledger. The key is never kept: a saved model must not carry what undoes its noise."""
        unit = self._unit()
        design = Design(X, bool(self.fit_intercept), unit)
        data = (*data_of(X), y)
        self._fit_design(method_of(self.method), design, y, loss, data, resume, conditions)
        count_fit(self, X, resume)
        return self

    def _unit(self) -> float:
        """What features are multiplied by: one over their public bound."""
        bound = self.feature_bound
        return 1.0 if bound is None else 1 / positive("feature_bound", bound)

    def _fit_design(
        self,
        method: Method,
        design: Design,
        y: Array,
        loss: Loss,
        data: tuple[Any, ...],
        resume: bool = False,
        conditions: tuple[str, ...] = (),
    ) -> None:
        """A fit by ``method``, whose rows may be elsewhere than in ``design``; a key from a seed
        belongs to ``data``. The caller counts it."""
        begin_fit(self)
        at_least("alpha", self.alpha, 0)
        unit, bound = design.unit, self.feature_bound
        relation = as_relation(self.relation)
        delta = as_delta(self.delta, design.n, self.allow_large_delta)
        target = Target(self.epsilon, delta, None, relation)
        earlier: tuple[str, ...] = ()
        if resume and hasattr(self, "_theta"):
            start, ledger, earlier = self._theta, self.ledger_, self.guarantee_.conditions
        else:
            start = np.zeros(design.shape(loss.outputs))
            ledger = Ledger(self._config(method, design))
        key = key_for(self.random_state, len(ledger), settings_of(self), *data)
        door = PrepaidDoor(ledger, relation, key)
        multiplier = self.noise_multiplier
        if multiplier is not None:
            multiplier = positive("noise_multiplier", multiplier)
        row_bound = None if bound is None else float(np.sqrt(1.0 + design.intercept))
        task = BoundedTask(
            design,
            y,
            loss,
            float(self.alpha),
            start,
            row_bound,
            bounds=self._bounds(design.d, unit),
            target_range=getattr(self, "target_range", None),
            learn_threshold=all(
                getattr(self, name, None) is None for name in ("threshold", "target_range")
            ),
        )
        solution = method.solve(task, Session(door, target, key, multiplier))
        self._theta = solution.theta
        self.n_iter_ = solution.steps
        if isinstance(solution, BoundedSolution) and solution.scaling is not None:
            # Rows are winsorised in predictions as they were in the fit.
            low, high = solution.scaling.low / unit, solution.scaling.high / unit
            self.feature_range_ = np.stack([low, high], axis=1)
            if solution.statistics is not None:
                self.statistics_ = solution.statistics
        if solution.trajectory:
            self.trajectory_ = [
                self._recorded(step, theta, unit) for step, theta in solution.trajectory
            ]
        self._keep_parameters(solution.theta, unit)
        self.ledger_ = ledger
        if self.random_state is not None:
            conditions += ("noise from a known seed: whoever knows the seed can subtract it",)
        conditions = (f"n = {design.n} is public", *conditions, *earlier)
        self.guarantee_ = door.guarantee(target.delta, conditions)
        self.epsilon_, self.delta_ = self.guarantee_.epsilon, self.guarantee_.delta

    def _bounds(self, d: int, unit: float) -> Array:
        """Public bounds of columns in the design's units; NaN where there are none."""
        bounds = as_bounds(getattr(self, "bounds", None), d)
        if bounds is None and self.feature_bound is not None:
            bounds = np.tile([-self.feature_bound, self.feature_bound], (d, 1))
        return np.full((d, 2), np.nan) if bounds is None else bounds * unit

    def _winsorised(self, X: Any) -> Any:
        """A table cut to ``feature_range_``, if the fit has one."""
        ranges = getattr(self, "feature_range_", None)
        if ranges is None:
            return X
        low, high = ranges[:, 0], ranges[:, 1]
        if not sparse.issparse(X):
            return np.clip(X, low, high)
        if (low > 0).any() or (high < 0).any():
            return np.clip(X.toarray(), low, high)
        cut = X.copy()
        cut.data = np.clip(cut.data, low[cut.indices], high[cut.indices])
        return cut

    def _config(self, method: Method, design: Design) -> dict[str, Any]:
        return {
            "estimator": type(self).__name__,
            "method": type(method).__name__,
            "n": design.n,
            "d": design.d,
        }

    def _recorded(self, step: int, theta: Array, unit: float) -> Recorded:
        """What the fit would have learned had it stopped there: post-processing of releases."""
        self._keep_parameters(theta, unit)
        return Recorded(step, self.coef_, self.intercept_)

    @abstractmethod
    def _keep_parameters(self, theta: Array, unit: float) -> None: ...

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def data_of(X: Any) -> list[Array]:
    """The arrays that hold a table, dense or sparse."""
    return [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]


def refuse_odd_sparse(X: Any) -> None:
    """Sparse tables of objects, strings or complex numbers, with a hint how to convert them."""
    if sparse.issparse(X) and X.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"X must hold real numbers if sparse. Got dtype {X.dtype} instead (Complex data not "
            "supported). Convert it with X.astype(float)."
        )


def theta_parts(theta: Array, intercept: bool) -> tuple[Array, Any]:
    """(weights, intercept) of theta; the intercept is 0 if there is none."""
    return (theta[:-1], theta[-1]) if intercept else (theta, np.zeros(theta.shape[1:]))
