"""Least squares of a table in partitions: `PrivateRidge` with ``method="suffstats"``.

    pass 1      rows and their digest
    passes 2-4  ranges of the columns without public bounds, and of the target
    passes 5-6  lengths of rows, if no ``feature_bound`` says them
    pass 7      sum_i a_i a_i': X'X, X'y and y'y in one release, solved on the driver

Guarantee
---------
That of `winsor.tables.linear.sufficient`: every release is a sum over rows, whoever adds it up.
What partitions send to the driver is not noised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError
from winsor.tables.glm_losses import Design, Squared
from winsor.tables.linear.base import method_of
from winsor.tables.linear.bounded import BoundedTask
from winsor.tables.linear.options import Method
from winsor.tables.linear.regression import PrivateLinearRegression, PrivateRidge
from winsor.tables.linear.scaled import Scaling
from winsor.tables.linear.sufficient import (
    Statistics,
    SufficientRun,
    SufficientStatistics,
    outer_products,
    scaled_target,
)
from winsor.tables.linear.task import LinearTask, Session, Solution
from winsor.tables.partitions.passes import Passes
from winsor.tables.partitions.source import Partitions
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.zoom import Zoom, counts_between
from winsor.tables.surroundings import count_fit

Array = NDArray[np.float64]
Model = TypeVar("Model", PrivateRidge, PrivateLinearRegression)


class RowsElsewhere(Design):
    """The shape of a design whose rows are in partitions."""

    def __init__(self, n: int, d: int, intercept: bool, unit: float) -> None:
        super().__init__(np.empty((0, d)), intercept, unit)
        self.n = n


@dataclass(frozen=True)
class Split:
    """Rows of a partition as features, in the units of ``feature_bound``, and a target, in those
    of ``target_range``."""

    target: int
    unit: float
    centre: float
    scale: float

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        features = np.delete(rows, self.target, axis=1) * self.unit
        return features, (rows[:, self.target] - self.centre) / self.scale


@dataclass(frozen=True)
class RangeCounts:
    """Cells of the columns whose ranges are looked for, and of the target if it is."""

    split: Split
    columns: NDArray[np.intp]
    target: bool
    edges: tuple[Array, ...]
    width: int

    def __call__(self, rows: Array) -> Array:
        features, target = self.split(rows)
        columns = [features[:, self.columns], *([target] if self.target else [])]
        table = np.column_stack(columns)
        return counts_between(table, self.edges, self.width)


@dataclass(frozen=True)
class LengthCounts:
    """Cells of the lengths of rows in scaled units."""

    split: Split
    scaling: Scaling
    intercept: bool
    edges: tuple[Array, ...]
    width: int

    def __call__(self, rows: Array) -> Array:
        design = Design(self.scaling.apply(self.split(rows)[0]), self.intercept)
        return counts_between(design.norms[:, None], self.edges, self.width)


@dataclass(frozen=True)
class OuterProducts:
    """sum_i a_i a_i' of some rows, cut to length ``bound``."""

    split: Split
    scaling: Scaling
    intercept: bool
    centre: float
    unit: float
    bound: float

    def __call__(self, rows: Array) -> Array:
        features, target = self.split(rows)
        design = Design(self.scaling.apply(features), self.intercept)
        return outer_products(design, scaled_target(target, self.centre, self.unit), self.bound)


class PartitionedRun(SufficientRun):
    """The closed form where every look at rows is a pass over partitions."""

    def __init__(
        self,
        options: SufficientStatistics,
        task: BoundedTask,
        session: Session,
        passes: Passes,
        split: Split,
    ) -> None:
        self.passes, self.split = passes, split
        super().__init__(options, task, session)

    def _ranges(self, zoom: Zoom, start: list[Array | None]) -> list[Distribution]:
        def counted(edges: Sequence[Array], width: int) -> Array:
            looked = self.look.unknown, self.look.target
            return self.passes.sum(RangeCounts(self.split, *looked, tuple(edges), width))

        mechanism = self._mechanism("ranges")
        return zoom.release_counts(counted, self.n, self.session.door, mechanism, start)

    def _statistics(self, scaling: Scaling, centre: float, unit: float) -> Statistics:
        intercept = self.task.design.intercept

        def counted(edges: Sequence[Array], width: int) -> Array:
            each = LengthCounts(self.split, scaling, intercept, tuple(edges), width)
            return self.passes.sum(each)

        if self.norms is not None:
            longest = self._longest_by(self.norms, counted)
        else:
            longest = self._longest(self.task.design)
        bound = math.hypot(longest, 1.0)
        each = OuterProducts(self.split, scaling, intercept, centre, unit, bound)
        return self._released(self.passes.sum(each), bound, scaling, centre, unit)


@dataclass
class Partitioned(Method):
    """The method of a fit whose rows are in partitions."""

    options: SufficientStatistics
    passes: Passes
    split: Split

    def solve(self, task: LinearTask, session: Session) -> Solution:
        bounded = self.options.check(task)
        return PartitionedRun(self.options, bounded, session, self.passes, self.split).solution()


def fit_ridge(model: Model, partitions: Partitions, target: int = -1) -> Model:
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
    d = partitions.columns - 1
    if d < 1 or not -partitions.columns <= target < partitions.columns:
        raise ConfigurationError(
            f"target must be one of {partitions.columns} columns, at least two. Got {target}."
        )
    options = method_of(model.method)
    if not isinstance(options, SufficientStatistics) or options.refine:
        raise ConfigurationError(
            'method must be "suffstats", without refine, on partitions: its releases are a few '
            f"sums over rows. Got {model.method!r} instead."
        )
    passes = Passes(partitions)
    centre, scale = model._target_units()
    split = Split(target % partitions.columns, model._unit(), centre, scale)
    design = RowsElsewhere(passes.n, d, bool(model.fit_intercept), split.unit)
    method = Partitioned(options, passes, split)
    model.n_features_in_ = d
    data = (passes.digest, target % partitions.columns)
    model._fit_design(method, design, np.empty(0), Squared(), data)
    count_fit(model, None)
    return model
