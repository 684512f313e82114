"""What the linear estimators share: checking input, choosing a method, one private fit.

Learned attributes: ``coef_``, ``intercept_``, ``n_iter_`` (private steps), those of
`winsor.tables.estimator.PrivateEstimator`; ``trajectory_``, if the method was told to ``record``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from winsor.core.checks import at_least, choice, nearest_first, positive
from winsor.core.contract import ConfigurationError
from winsor.core.randomness import key_for
from winsor.tables.design import Design
from winsor.tables.estimator import PrivateEstimator
from winsor.tables.inputs import as_bounds, data_of
from winsor.tables.linear.averaged import AveragedDescent, Restarted
from winsor.tables.linear.flat import FlatDescent
from winsor.tables.linear.robust_gd import RobustGD
from winsor.tables.linear.ruled import Ruled, needs_torch
from winsor.tables.linear.simple import Iterative, Simple
from winsor.tables.linear.sufficient import SufficientStatistics
from winsor.tables.linear.task import BoundedSolution, BoundedTask, Method
from winsor.tables.linear.whitened import Whitened
from winsor.tables.losses import Loss
from winsor.tables.refused_tables import read_table
from winsor.tables.units import ONE_ROW_EACH, Unit, one_row_each

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
    """Return a `Method`: by its name, by the name of a clipping rule, from a rule, or as it is."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    with needs_torch(method):  # here: other methods need no rules
        from winsor import rules
        from winsor.rules.rule import Rule

    if isinstance(method, str):
        if not rules.is_known(method):
            choice("method", method, nearest_first(method, METHODS), _OTHERS)
        return Ruled(method)
    if isinstance(method, Rule):
        return Ruled(method)
    raise ConfigurationError(
        f"method must be one of {', '.join(METHODS)}, the name of a clipping rule, a rule, or a "
        f"Method such as FlatDescent(max_grad_norm=0.5). Got {method!r} instead."
    )


class PrivateLinearModel(PrivateEstimator, ABC):
    """Base of the linear estimators. Subclasses give the loss and translate targets."""

    method: Any
    alpha: float
    fit_intercept: bool
    feature_bound: float | None
    noise_multiplier: float | None
    _theta: Array
    feature_range_: Array
    """(d, 2): where ``method="whitened"`` winsorised the columns."""
    coef_: Array
    intercept_: Any
    trajectory_: list[Recorded]

    def _check_continues(self) -> None:
        if not method_of(self.method).continues:
            raise ConfigurationError(
                'method must be "whitened", "flat" or "averaged" for partial_fit. Got '
                f"{self.method!r} instead."
            )

    def _check_table(self, X: Any, y: Any, reset: bool = True) -> Any:
        options: dict[str, Any] = {"accept_sparse": "csr", "order": "C", "ensure_min_samples": 2}
        return read_table(self, X, y, reset=reset, **options)

    def _fit(
        self,
        X: Any,
        y: Array,
        loss: Loss,
        resume: bool = False,
        conditions: tuple[str, ...] = (),
        unit: Unit | None = None,
    ) -> Self:
        """One private fit of ``loss``; with ``resume``, on from the present parameters and in the
        same ledger. The key is never kept: a saved model must not carry what undoes its noise."""
        if unit is not None:
            kept = one_row_each(X.shape[0], unit, key_for(self.random_state, 0, "rows of units"))
            X, y, conditions = X[kept], y[kept], (*conditions, ONE_ROW_EACH)
        design, data = Design(X, bool(self.fit_intercept), self._unit()), (*data_of(X), y)
        method = method_of(self.method)
        return self._fit_design(method, design, y, loss, data, X, resume, conditions, unit)

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
        rows: Any = None,
        resume: bool = False,
        conditions: tuple[str, ...] = (),
        unit_ids: Unit | None = None,
    ) -> Self:
        """A fit by ``method``, whose rows may be elsewhere than in ``design``; a key from a seed
        belongs to ``data``, and reuse of ``rows`` is warned of. ``unit_ids`` say whose each is."""
        at_least("alpha", self.alpha, 0)
        goes_on = resume and hasattr(self, "_theta")
        start = self._theta if goes_on else np.zeros(design.shape(loss.outputs))
        multiplier = self.noise_multiplier
        if multiplier is not None:
            multiplier = positive("noise_multiplier", multiplier)
        session = self._open(
            design.n,
            self._config(method, design),
            *data,
            resumed=self.ledger_ if goes_on else None,
            noise_multiplier=multiplier,
            unit=unit_ids,
        )
        solution = method.solve(self._task(design, y, loss, start), session)
        self._theta, self.n_iter_ = solution.theta, solution.steps
        unit = design.unit
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
        earlier = self.guarantee_.conditions if goes_on else ()
        return self._close(session, design.n, rows, conditions, earlier, resume)

    def _task(self, design: Design, y: Array, loss: Loss, start: Array) -> BoundedTask:
        bounded = self.feature_bound is not None
        return BoundedTask(
            design,
            y,
            loss,
            float(self.alpha),
            start,
            float(np.sqrt(1.0 + design.intercept)) if bounded else None,
            bounds=self._bounds(design.d, design.unit),
            target_range=getattr(self, "target_range", None),
            learn_threshold=all(
                getattr(self, name, None) is None for name in ("threshold", "target_range")
            ),
        )

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
        names = {"estimator": type(self).__name__, "method": type(method).__name__}
        return {**names, "n": design.n, "d": design.d}

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


def theta_parts(theta: Array, intercept: bool) -> tuple[Array, Any]:
    """Return (weights, intercept) of theta; the intercept is 0 if there is none."""
    return (theta[:-1], theta[-1]) if intercept else (theta, np.zeros(theta.shape[1:]))
