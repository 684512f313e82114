"""Estimators fitted to a table in partitions: every release is a sum over rows, whoever adds it up.

    fit_scaler     a pass for rows and their digest, three for ranges, one for moments
    fit_ridge      the same for ranges, two for lengths of rows if no ``feature_bound`` says them,
                   and one for X'X, X'y and y'y, solved on the driver
    fit_additive   a pass for each release, about 220, most of them steps of the two descents. Keep
                   partitions where loading them is cheap (`persist` on a Dask cluster, files on a
                   fast disk)

Guarantee
---------
Those of `PrivateScaler`, of `winsor.tables.linear.sufficient` and of `winsor.tables.additive`. What
partitions send to the driver is not noised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError
from winsor.planning.shares import Session
from winsor.tables.additive.estimators import PrivateAdditiveClassifier, PrivateAdditiveRegressor
from winsor.tables.additive.fitting import LossOf, Table
from winsor.tables.design import Design
from winsor.tables.linear.base import method_of
from winsor.tables.linear.regressors import PrivateLinearRegression, PrivateRidge
from winsor.tables.linear.sufficient import SufficientRun, SufficientStatistics
from winsor.tables.linear.task import LinearTask, Method, Solution
from winsor.tables.losses import Loss, Squared
from winsor.tables.partitions.source import Partitions, Passes
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.transformers import PrivateScaler

Array = NDArray[np.float64]
Additive = TypeVar("Additive", PrivateAdditiveClassifier, PrivateAdditiveRegressor)
Ridge = TypeVar("Ridge", PrivateRidge, PrivateLinearRegression)


def fit_scaler(scaler: PrivateScaler, partitions: Partitions) -> PrivateScaler:
    """Fit ``scaler`` to all columns of ``partitions``, as `PrivateScaler.fit` would to one table.

    Examples
    --------
    >>> load = lambda: np.random.default_rng(0).normal(3.0, 2.0, size=(20_000, 1))
    >>> rows = Partitions.of_loaders([load, load], columns=1)
    >>> scaler = PrivateScaler(low=-20, high=20, epsilon=1.0, random_state=0)
    >>> bool(abs(fit_scaler(scaler, rows).mean_[0] - 3) < 0.1)
    True
    """
    passes = Passes(partitions)
    scaler.n_features_in_ = passes.columns
    return scaler._fit_rows(passes, None)


# ------------------------------------------------------------------------------------ least squares


@dataclass(frozen=True)
class OfSplit:
    """A function of features, in the units of ``feature_bound``, and targets, in those of
    ``target_range``, as one of the rows of a partition."""

    f: Callable[[Array, Array], Array]
    target: int
    unit: float
    centre: float
    scale: float

    def __call__(self, rows: Array) -> Array:
        """Split the rows and apply the function."""
        features = np.delete(rows, self.target, axis=1) * self.unit
        return self.f(features, (rows[:, self.target] - self.centre) / self.scale)


class RowsElsewhere(Design):
    """The shape of a design whose rows are in partitions."""

    def __init__(self, n: int, d: int, intercept: bool, unit: float) -> None:
        super().__init__(np.empty((0, d)), intercept, unit)
        self.n = n


@dataclass
class Partitioned(Method):
    """The closed form where every look at rows is a pass over partitions."""

    options: SufficientStatistics
    passes: Passes
    split: tuple[int, float, float, float]

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Release the statistics, summed over partitions, and solve."""

        def summed(f: Callable[[Array, Array], Array]) -> Array:
            return self.passes.sum(OfSplit(f, *self.split))

        return SufficientRun(self.options, self.options.check(task), session, summed).solution()


def fit_ridge(model: Ridge, partitions: Partitions, target: int = -1) -> Ridge:
    """Fit ``model`` to partitions, column ``target`` on all others, in their order.

    ``model`` is a `PrivateRidge` or a `PrivateLinearRegression` with ``method="suffstats"``
    (without ``refine``). Equal to `fit` on the table in one piece but for the order of additions,
    with a key of bytes; `regularisation_path` is free afterwards, as always.

    Examples
    --------
    >>> def load(seed):
    ...     x = np.random.default_rng(seed).normal(size=(20_000, 2))
    ...     return np.column_stack([x, x @ [1.0, -0.5] + 3.0])
    >>> import functools
    >>> rows = Partitions.of_loaders([functools.partial(load, s) for s in range(2)], columns=3)
    >>> model = PrivateRidge(epsilon=1.0, method="suffstats", random_state=0)
    >>> fit_ridge(model, rows).coef_.round(1).tolist()
    [1.0, -0.5]
    """
    place, d = _target_of(partitions, target)
    options = method_of(model.method)
    if not isinstance(options, SufficientStatistics) or options.refine:
        raise ConfigurationError(
            'method must be "suffstats", without refine, on partitions: its releases are a few '
            f"sums over rows. Got {model.method!r} instead."
        )
    passes, unit = Passes(partitions), model._unit()
    method = Partitioned(options, passes, (place, unit, *model._target_units()))
    design = RowsElsewhere(passes.n, d, bool(model.fit_intercept), unit)
    model.n_features_in_ = d
    data = (passes.digest, place)
    return model._fit_design(method, design, np.empty(0), Squared(), data)


# ---------------------------------------------------------------------------------- additive models


@dataclass(frozen=True)
class PartOfFit:
    """A sum that `Table` knows, over the rows of a partition."""

    target: int
    reader: Any
    """The model before its fit, without its key: it says how targets are read."""
    loss: tuple[LossOf, list[Distribution]] | None
    part: Callable[..., Array]
    arguments: tuple[Any, ...]

    def __call__(self, rows: Array) -> Array:
        """Return the sum over these rows."""
        values = self.reader._values(rows[:, self.target])
        table = Table(np.delete(rows, self.target, axis=1), values[:, None])
        if self.loss is not None:
            table.begin(*self.loss)
        return table.total(self.part, *self.arguments)


class PartitionedRows:
    """`winsor.tables.additive.fitting.AdditiveRows`, where every sum is a pass over partitions."""

    def __init__(self, passes: Passes, target: int, reader: Any) -> None:
        self.n = passes.n
        self._passes, self._target, self._reader = passes, target, reader
        self._loss: tuple[LossOf, list[Distribution]] | None = None

    def begin(self, loss_of: LossOf, found: list[Distribution]) -> Loss:
        """Settle the loss, by the loss of no rows: its settings are those of all."""
        self._loss = self._reader._loss, found
        return loss_of(np.empty((0, 1)), found)[0]

    def total(self, part: Callable[..., Array], *arguments: Any) -> Array:
        """Return the sum over all rows of a method of `Table`."""
        summed = PartOfFit(self._target, self._reader, self._loss, part, arguments)
        return self._passes.sum(summed)


def fit_additive(
    model: Additive,
    partitions: Partitions,
    target: int = -1,
    classes: Sequence[float] | None = None,
) -> Additive:
    """Fit ``model`` to partitions, column ``target`` on all others, in their order.

    ``classes`` are the public labels of a classifier; a row with another one counts as one of the
    first. Equal to `fit` on the table in one piece but for the order
    of additions, with a key of bytes. Exposures are not served here.
    """
    place, d = _target_of(partitions, target)
    conditions = model._prepare(classes)
    passes, reader = Passes(partitions), copy(model)
    reader.random_state = reader.budget = None  # workers read rows, and nothing else
    rows = PartitionedRows(passes, place, reader)
    model.n_features_in_ = d
    data = (passes.digest, place, classes)
    model._fit(rows, d, model._value_bounds(), model._loss, data, conditions)
    return model


def _target_of(partitions: Partitions, target: int) -> tuple[int, int]:
    """The place of the target, and how many features are beside it."""
    columns = partitions.columns
    if columns < 2 or not -columns <= target < columns:
        raise ConfigurationError(
            f"target must be one of {columns} columns, at least two. Got {target}."
        )
    return target % columns, columns - 1
