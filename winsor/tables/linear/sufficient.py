"""Least squares from one release: X'X, X'y and y'y together, then a closed form.

    a_i = (u_i, 1, t_i)    columns scaled to [-1, 1], t = clip((y - c)/(k s), -1, 1), |a_i| cut to B
    release  sum_i a_i a_i'   (its triangle, off-diagonal entries times sqrt(2)), one Gaussian
    solve    (X'X + n alpha I)^-1 X'y  with the eigenvalues of X'X raised to the noise

One matrix holds all three statistics in the share that makes its noise smallest: an entry of X'y
then has the noise of an entry of X'X. Whatever is solved from it later is free: `Statistics.theta`
for any alpha, and so a whole regularisation path.

``regulariser="adassp"`` adds Wang's (2018) ridge max(0, sqrt(p log(2 p^2/0.05)) s - l_min) to every
eigenvalue; ``"floor"``, the default, raises only those below twice the noise, and leaves alone what
the data have shown. ``refine`` winsorises residuals: so many clipped steps from the solution
(`whitened.py`) with ``steps_share`` of the budget, with a clipping bound from the residual variance
that the statistics themselves say.

Guarantee
---------
Ranges and lengths as in `whitened.py`. The triangle of a a' has length |a|^2 <= B^2, and a_i is a
function of row i and of what was released before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import choice, positive, probability, whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.planning.shares import Part, Session
from winsor.tables.design import Design
from winsor.tables.inputs import within
from winsor.tables.linear.metric import Metric, gram_of, release_triangle
from winsor.tables.linear.scaled import Scaling
from winsor.tables.linear.task import BoundedSolution, BoundedTask, LinearTask, Method, Solution
from winsor.tables.linear.whitened import WIDEST, Run, Summed, Whitened
from winsor.tables.losses import Squared
from winsor.tables.ranges.zoom import counts_between

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Released X'X, X'y and y'y per row, in scaled units, and the way back to raw ones."""

    gram: Array
    moment: Array
    square: float
    noise: float
    """Standard deviation of the noise of an entry, per row."""
    regulariser: str
    intercept: bool
    scaling: Scaling
    centre: float
    unit: float
    """y = centre + unit t."""

    def inside(self, alpha: float = 0.0) -> Array:
        """Return parameters of (u, 1) for t, with a penalty alpha/2 |w|^2 on those of u."""
        p = len(self.gram)
        values, vectors = np.linalg.eigh(self.gram)
        if self.regulariser == "adassp":
            wanted = math.sqrt(p * math.log(2 * p**2 / 0.05)) * self.noise
            values = np.maximum(values, 0.0) + max(0.0, wanted - max(float(values.min()), 0.0))
        else:
            values = np.maximum(values, 2 * math.sqrt(2 * p) * self.noise)
        penalty = np.full(p, float(alpha))
        if self.intercept:
            penalty[-1] = 0.0
        system = (vectors * values) @ vectors.T + np.diag(penalty)
        return np.asarray(np.linalg.solve(system, self.moment))

    def theta(self, alpha: float = 0.0) -> Array:
        """Return parameters of the raw columns for y."""
        return self.outside(self.inside(alpha))

    def outside(self, inside: Array) -> Array:
        """Return parameters of (u, 1) for t as those of the raw columns for y."""
        return self.scaling.outside(self.unit * inside, self.intercept, self.centre)

    def residual_deviation(self, inside: Array) -> float:
        """Return the deviation of t about its prediction, by the statistics; at least a tenth of
        that of t."""
        explained = float(2 * inside @ self.moment - inside @ self.gram @ inside)
        return math.sqrt(max(self.square - explained, 0.01 * self.square, 1e-6))


@dataclass
class SufficientStatistics(Method):
    """Options of the closed form. The shares are of the budget, in units of 1/nm^2."""

    regulariser: str = "floor"
    refine: int = 0
    ranges: float = 0.10
    norms: float = 0.03
    steps_share: float = 0.5
    clip: float | None = None

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Release the statistics and solve; refine, if so asked."""
        return SufficientRun(self, self.check(task), session).solution()

    def check(self, task: LinearTask) -> BoundedTask:
        """Return the task, if it has sufficient statistics that can be held."""
        choice("regulariser", self.regulariser, ("floor", "adassp"))
        whole("refine", self.refine, 0)
        self._check("clip")
        probability("steps_share", self.steps_share)
        if not isinstance(task.loss, Squared) or not isinstance(task, BoundedTask):
            raise ConfigurationError(
                'method "suffstats" must be used with a squared loss: no other has sufficient '
                f"statistics. Got {type(task.loss).__name__} instead. Use PrivateRidge or "
                "PrivateLinearRegression, or another method."
            )
        if not isinstance(task.design.x, np.ndarray) or task.design.d > WIDEST:
            raise ConfigurationError(
                f"the table must be dense with at most {WIDEST} columns for X'X. Got "
                f'{task.design.d} columns instead. Use method="flat".'
            )
        return task


class SufficientRun(Run):
    """The same ranges and lengths as `Whitened`; one matrix in place of its gram and steps."""

    def __init__(
        self,
        options: SufficientStatistics,
        task: BoundedTask,
        session: Session,
        summed: Summed | None = None,
    ) -> None:
        """``summed`` adds up functions of rows that are not in ``task``."""
        self.sufficient = options
        shares = Whitened(ranges=options.ranges, norms=options.norms, level=0.0, clip=options.clip)
        super().__init__(shares, task, session, summed)

    def _parts(self) -> dict[str, Part]:
        options, unit, parts = self.sufficient, Sensitivity.per_sample(1.0, ""), self._looks()
        rest = 1 - sum(part.share for part in parts.values())
        if options.refine:
            steps = rest * options.steps_share
            parts["steps"] = Part(unit, options.refine, steps)
            rest -= steps
        parts["gram"] = Part(unit, 1, rest)
        return parts

    def solution(self) -> Solution:
        """Make all releases in turn."""
        task, options = self.task, self.sufficient
        found = self._distributions()
        scaling = self._scaling(found[:-1])
        centre, deviation = self._target(found[-1])
        unit = positive("the scale of y", 2 * self.clipping() * deviation)
        statistics = self._statistics(scaling, centre, unit)
        theta = statistics.inside(task.alpha)
        if options.refine:
            design = self._design(scaling)
            deviation = statistics.residual_deviation(theta)
            metric = Metric.of(statistics.gram, statistics.noise)
            start = np.asarray(np.linalg.solve(metric.root, theta), dtype=np.float64)
            y = (task.y - centre) / unit
            whitened = self.descend(design, y, metric, start, deviation, options.refine)
            theta = metric.root @ whitened
        outside = statistics.outside(theta)
        releases = self.shares.releases
        return BoundedSolution(outside, releases, scaling=scaling, statistics=statistics)

    def _design(self, scaling: Scaling) -> Design:
        """The rows in scaled units."""
        return Design(scaling.apply(self._features), self.task.design.intercept)

    def _statistics(self, scaling: Scaling, centre: float, unit: float) -> Statistics:
        intercept = self.task.design.intercept

        def counted(edges: Sequence[Array], width: int) -> Array:
            return self.summed(LengthCounts(scaling, intercept, tuple(edges), width))

        bound = math.hypot(self._longest(counted), 1.0)
        total = self.summed(OuterProducts(scaling, intercept, centre, unit, bound))
        released, std = release_triangle(total, bound, self.n, *self.shares["gram"])
        return Statistics(
            gram=released[:-1, :-1],
            moment=released[:-1, -1],
            square=float(released[-1, -1]),
            noise=std,
            regulariser=self.sufficient.regulariser,
            intercept=intercept,
            scaling=scaling,
            centre=centre,
            unit=unit,
        )


@dataclass(frozen=True)
class LengthCounts:
    """Cells of the lengths of rows in scaled units."""

    scaling: Scaling
    intercept: bool
    edges: tuple[Array, ...]
    width: int

    def __call__(self, features: Array, target: Array) -> Array:
        """Count lengths below, between and above the edges."""
        design = Design(self.scaling.apply(features), self.intercept)
        return counts_between(design.norms[:, None], self.edges, self.width)


@dataclass(frozen=True)
class OuterProducts:
    """sum_i a_i a_i', rows cut to length ``bound``."""

    scaling: Scaling
    intercept: bool
    centre: float
    unit: float
    bound: float

    def __call__(self, features: Array, target: Array) -> Array:
        """Return the matrix of these rows."""
        design = Design(self.scaling.apply(features), self.intercept)
        return gram_of(design, self.bound, within((target - self.centre) / self.unit))
