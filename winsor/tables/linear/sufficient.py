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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import choice, positive, probability, whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment
from winsor.tables.glm_losses import Design, Squared
from winsor.tables.linear.bounded import BoundedSolution, BoundedTask
from winsor.tables.linear.metric import Metric
from winsor.tables.linear.options import Method
from winsor.tables.linear.scaled import Scaling
from winsor.tables.linear.task import LinearTask, Session, Solution
from winsor.tables.linear.whitened import WIDEST, Run, Whitened

Array = NDArray[np.float64]

_PROOF = "rows (u, 1, t) cut to length B: the triangle of a a' has length at most B^2"
_SLACK = 1 + 1e-9


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
        """Parameters of (u, 1) for t, with a penalty alpha/2 |w|^2 on those of u."""
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
        """Parameters of the raw columns for y."""
        return self.outside(self.inside(alpha))

    def outside(self, inside: Array) -> Array:
        """Parameters of (u, 1) for t as those of the raw columns for y."""
        scaled = self.unit * inside
        if not self.intercept:
            return scaled / self.scaling.reach
        weights = scaled[:-1] / self.scaling.reach
        level = scaled[-1] + self.centre - self.scaling.centre @ weights
        return np.concatenate([weights, [level]])

    def residual_deviation(self, inside: Array) -> float:
        """Of t about its prediction, by the statistics; never below a tenth of that of t."""
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
        return SufficientRun(self, self.check(task), session).solution()

    def check(self, task: LinearTask) -> BoundedTask:
        """The task, if it has sufficient statistics that can be held."""
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

    def __init__(self, options: SufficientStatistics, task: BoundedTask, session: Session) -> None:
        self.sufficient = options
        shares = Whitened(ranges=options.ranges, norms=options.norms, level=0.0, clip=options.clip)
        super().__init__(shares, task, session)

    def _plan(self) -> dict[str, Payment]:
        options, everyone = self.sufficient, FullBatch(self.n)
        lines, spent = self._looks()
        unit, rest = Sensitivity.per_sample(1.0, ""), 1 - spent
        if options.refine:
            steps = rest * options.steps_share
            scale = math.sqrt(options.refine / steps)
            lines["steps"] = Payment(everyone, unit, options.refine, scale)
            rest -= steps
        lines["gram"] = Payment(everyone, unit, 1, math.sqrt(1 / rest))
        return lines

    def solution(self) -> Solution:
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
        releases = sum(line.steps for line in self.plan.values())
        return BoundedSolution(
            statistics.outside(theta), releases, scaling=scaling, statistics=statistics
        )

    def _design(self, scaling: Scaling) -> Design:
        """The rows in scaled units."""
        design = self.task.design
        raw = design.x if design.unit == 1.0 else design.x * design.unit
        return Design(scaling.apply(raw), design.intercept)

    def _statistics(self, scaling: Scaling, centre: float, unit: float) -> Statistics:
        design = self._design(scaling)
        bound = math.hypot(self._longest(design), 1.0)
        total = outer_products(design, scaled_target(self.task.y, centre, unit), bound)
        return self._released(total, bound, scaling, centre, unit)

    def _released(
        self, total: Array, bound: float, scaling: Scaling, centre: float, unit: float
    ) -> Statistics:
        """The sum of a a' over rows no longer than ``bound``, with noise."""
        released, std = self._release_triangle(total, bound)
        return Statistics(
            gram=released[:-1, :-1],
            moment=released[:-1, -1],
            square=float(released[-1, -1]),
            noise=std,
            regulariser=self.sufficient.regulariser,
            intercept=self.task.design.intercept,
            scaling=scaling,
            centre=centre,
            unit=unit,
        )


def scaled_target(y: Array, centre: float, unit: float) -> Array:
    return np.clip((y - centre) / unit, -1.0, 1.0)


def outer_products(design: Design, t: Array, bound: float) -> Array:
    """sum_i a_i a_i', a = (u, 1, t) cut to length ``bound``, a chunk at a time."""
    lengths = np.hypot(design.norms, t)
    cut = np.minimum(1.0, bound / (lengths * _SLACK + 1e-300))
    total = np.zeros((design.size + 1, design.size + 1))
    for piece, rows in design.chunks(1 << 20):
        ones = [np.ones(len(rows.x))] if design.intercept else []
        table = np.column_stack([rows.x, *ones, t[piece]]) * cut[piece, None]
        total += table.T @ table
    return total
