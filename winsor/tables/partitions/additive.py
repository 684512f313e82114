"""Additive models of a table in partitions.

Every release of a fit is a sum over rows: cells, hats, clipped gradients, residuals. So a fit is a
pass over the partitions for each of them: about 220, most of them steps of the two descents. Keep
partitions where loading them is cheap (`persist` on a Dask cluster, files on a fast disk).

Guarantee
---------
That of `winsor.tables.additive`. What partitions send to the driver is not noised.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError
from winsor.tables.additive.classifier import PrivateAdditiveClassifier
from winsor.tables.additive.losses import Loss
from winsor.tables.additive.pairs import Pair
from winsor.tables.additive.regressor import PrivateAdditiveRegressor
from winsor.tables.additive.rows import LossOf, Table
from winsor.tables.additive.terms import Design
from winsor.tables.partitions.passes import Passes
from winsor.tables.partitions.source import Partitions
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]
Model = TypeVar("Model", PrivateAdditiveClassifier, PrivateAdditiveRegressor)


@dataclass(frozen=True)
class TargetOf:
    """Rows of a partition as a `Table`: features, and the values of the loss."""

    target: int
    reader: Any
    """The model before its fit, without its key: it says how targets are read."""

    def __call__(self, rows: Array) -> Table:
        values = self.reader._values(rows[:, self.target])
        return Table(np.delete(rows, self.target, axis=1), values[:, None])


@dataclass(frozen=True)
class Look:
    """One sum that `Table` knows, over the rows of a partition."""

    table_of: TargetOf
    loss: tuple[LossOf, list[Distribution]] | None
    name: str
    asked: tuple[Any, ...]

    def __call__(self, rows: Array) -> Array:
        table = self.table_of(rows)
        if self.loss is not None:
            table.begin(*self.loss)
        found: Array = getattr(table, self.name)(*self.asked)
        return found


class PartitionedRows:
    """`winsor.tables.additive.rows.Rows`, where every sum is a pass over partitions."""

    def __init__(self, passes: Passes, table_of: TargetOf) -> None:
        self.n = passes.n
        self._passes, self._table_of = passes, table_of
        self._loss: tuple[LossOf, list[Distribution]] | None = None

    def _sum(self, name: str, *asked: Any) -> Array:
        return self._passes.sum(Look(self._table_of, self._loss, name, asked))

    def begin(self, loss_of: LossOf, found: list[Distribution]) -> Loss:
        """The loss of no rows: its settings are those of all."""
        self._loss = self._table_of.reader._loss, found
        return loss_of(np.empty((0, 1)), found)

    def counted(self, edges: Sequence[Array], width: int) -> Array:
        return self._sum("counted", list(edges), width)

    def hats(self, knots: Sequence[Array], width: int) -> Array:
        return self._sum("hats", list(knots), width)

    def gradient(self, design: Design, parameters: Array, clip: float) -> Array:
        return self._sum("gradient", design, parameters, clip)

    def residual_counts(self, design: Design, parameters: Array) -> Array:
        return self._sum("residual_counts", design, parameters)

    def pair_sums(
        self, design: Design, parameters: Array, looked_at: Sequence[Pair], clip: float
    ) -> Array:
        return self._sum("pair_sums", design, parameters, list(looked_at), clip)

    def residual_sum(self, design: Design, parameters: Array, cut: float) -> Array:
        return self._sum("residual_sum", design, parameters, cut)


def fit_additive(
    model: Model, partitions: Partitions, target: int = -1, classes: Sequence[float] | None = None
) -> Model:
    """Fit ``model`` to partitions, column ``target`` on all others, in their order.

    ``classes`` are the public labels of a classifier, all that the target may be; a row with
    another one is refused where it is. Equal to `fit` on the table in one piece but for the order
    of additions, with a key of bytes. Exposures are not served here.
    """
    d = partitions.columns - 1
    if d < 1 or not -partitions.columns <= target < partitions.columns:
        raise ConfigurationError(
            f"target must be one of {partitions.columns} columns, at least two. Got {target}."
        )
    conditions = model._prepare(classes)
    passes, place = Passes(partitions), target % partitions.columns
    reader = copy(model)
    reader.random_state = reader.budget = None  # workers read rows, and nothing else
    rows = PartitionedRows(passes, TargetOf(place, reader))
    model.n_features_in_ = d
    data = (passes.digest, place, str(classes))
    model._fit(rows, d, model._value_bounds(), model._loss, data, conditions)
    return model
