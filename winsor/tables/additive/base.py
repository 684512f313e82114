"""What the additive estimators share: checking input, one private fit, what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from winsor.charts import Chart
from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError
from winsor.planning.shares import payments
from winsor.tables.additive.fitting import AdditiveRows, Fit, Fitted, LossOf, Table
from winsor.tables.additive.plan import Plan
from winsor.tables.additive.shapes import Shape, chart_of, shapes_of
from winsor.tables.estimator import PrivateEstimator
from winsor.tables.inputs import as_bounds
from winsor.tables.ranges.bins import Bins
from winsor.tables.refused_tables import known_table

Array = NDArray[np.float64]

BINS = 32
"""Cells of equal mass of the distributions that knots are read from (half their number)."""


class PrivateAdditiveModel(PrivateEstimator):
    """Base of the additive estimators. Subclasses give the loss and read scores.

    Learned attributes: ``terms_`` (the shape functions), ``interactions_`` (pairs that were
    chosen), ``n_iter_`` (private steps), and those of `PrivateEstimator`.
    """

    interactions: int
    bounds: Any
    _fitted: Fitted

    def _fit(
        self,
        rows: AdditiveRows,
        features: int,
        value_bounds: list[Any],
        loss_of: LossOf,
        data: tuple[Any, ...],
        conditions: tuple[str, ...] = (),
    ) -> None:
        """``value_bounds`` has a place for each value of a row, such as a target, whose
        distribution the loss needs. A key from a seed belongs to ``data``."""
        n = rows.n
        whole("interactions", self.interactions, 0)
        bounds = _all_bounds(self.bounds, features, value_bounds)
        config = {"estimator": type(self).__name__, "n": n, "d": features}
        session = self._open(n, config, *data)
        bins = Bins(features + len(value_bounds), BINS, bounds, indicators=True)
        plan = Plan.of(bins, len(value_bounds), self.interactions > 0, n, session.target)
        session.admitted(payments(n, plan.shares.parts), plan.shares.multiplier)
        self._fitted = Fit(rows, features, plan, session.door).run(loss_of, self.interactions)
        self.n_iter_ = plan.shares.parts["first"].steps + plan.shares.parts["last"].steps
        self.terms_ = shapes_of(self._fitted, self._names(), self._score_unit())
        self.interactions_ = [term.features for term in self.terms_ if len(term.features) == 2]
        table = rows.features if isinstance(rows, Table) else None
        self._close(session, n, table, conditions)

    def _score_unit(self) -> float:
        """What shape functions are drawn in: log-odds and logarithms of means as they are."""
        return 1.0

    def _names(self) -> list[str]:
        named = getattr(self, "feature_names_in_", None)
        if named is not None:
            return [str(name) for name in named]
        return [f"feature {number}" for number in range(self.n_features_in_)]

    def _scores(self, X: Any) -> Array:
        """(n, outputs) scores: sums of shape functions."""
        check_is_fitted(self)
        table = known_table(self, X)
        return self._fitted.scores(table)

    def shape(self, term: int | str) -> Shape:
        """Return the shape function of a feature (its number or name), or of a pair (its name)."""
        check_is_fitted(self)
        for shape in self.terms_:
            if term == shape.name or shape.features == (term,):
                return shape
        raise ConfigurationError(
            f"term must be one with a shape function: {[shape.name for shape in self.terms_]}. Got "
            f"{term!r} instead. Features that looked constant have none."
        )

    def plot(self, term: int | str) -> Chart:
        """Draw one shape function; `winsor.charts.save` writes the chart to a file."""
        return chart_of(self.shape(term))


def _all_bounds(bounds: Any, features: int, others: list[Any]) -> Array | None:
    """Bounds of features and other columns together, NaN where unknown."""
    own = as_bounds(bounds, features)
    more = as_bounds(others, len(others)) if others and any(b is not None for b in others) else None
    if own is None and more is None:
        return None
    unknown = np.full((features, 2), np.nan), np.full((len(others), 2), np.nan)
    return np.concatenate(
        [unknown[0] if own is None else own, unknown[1] if more is None else more]
    )
