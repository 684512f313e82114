"""Whitened descent: learn ranges and X'X within the budget, then a few clipped Newton-like steps.

    1  ranges  histograms of the columns whose bounds are not given, and of y       share 0.10
    2  norms   a histogram of the row lengths |(u, 1)|; B its upper end             share 0.03
               (none if ``feature_bound`` says it)
    3  X'X     H = (1/n) [ sum_i (u_i, 1)(u_i, 1)' + noise ], rows cut to length B  share 0.25
    4  steps   v = H^-1/2 (u, 1),  g = (1/n) [ sum_i clip(r_i v_i) + noise ],
               theta <- theta - g / curvature                                       the rest
    5  level   squared loss only: the intercept moves by the heavy-tailed mean of the residuals
                                                                                    share 0.10

In whitened coordinates all directions have the same curvature, so twenty steps reach the optimum
where plain descent needs thousands. The mean of the last half of the iterates is kept: its noise
does not depend on the number of steps. `metric.py` says what becomes of directions that noise
hides, `winsor.tables.ranges.plan` which columns step 1 looks at. At the end of step 4 slopes are
drawn towards zero by what chance explains of them (`towards_level`).

The clipping bound is k s sqrt(m), with s the deviation of the target (1/2 for classes), m at most p
and k = n mu / (64 sqrt(p m)) between 1 and 4: there the noise adds 2 k^2 p m/(n mu)^2 of the
variance of the target to the loss, less than 1/2000 until it is the least bound that lets typical
rows through. m is `PASSING` times the mean square length of rows in whitened coordinates, so that
residuals of up to two deviations pass, and of classes, which have no tails, up to one and a half.

Guarantee
---------
1, 2, 5: those of `zoom.py` and `winsorised.py`. 3: the upper triangle with off-diagonal entries
times sqrt(2) has the length |(u, 1)|^2 <= B^2. 4: residuals limited row by row, |r_i v_i| <= C,
v_i a function of row i and of what was released. All are Gaussian releases, calibrated together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import fraction, positive, probability, whole
from winsor.core.contract import Sensitivity
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.shares import Part, Session
from winsor.tables.descent import mean_of_last
from winsor.tables.design import Design
from winsor.tables.linear.batches import batch_sums
from winsor.tables.linear.flat import FlatDescent
from winsor.tables.linear.metric import Metric, gram_of, release_triangle, towards_level
from winsor.tables.linear.scaled import Scaling, column
from winsor.tables.linear.task import BoundedSolution, BoundedTask, LinearTask, Method, Solution
from winsor.tables.losses import Huber, Loss, Squared
from winsor.tables.means.winsorised import HeavyMean
from winsor.tables.ranges.coarse import anywhere
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.plan import PublicFacts, RangePlan, share_of_lengths
from winsor.tables.ranges.zoom import Counted, Zoom, counts_between

Array = NDArray[np.float64]

Summed = Callable[[Callable[[Array, Array], Array]], Array]
"""The sum over all rows of a function of features, in the design's units, and targets."""

WIDEST = 2000
"""With more columns, or a table kept sparse, X'X is out of reach: `FlatDescent` takes over."""

FEW_ROWS = 10_000.0
"""(n mu)^2 times a share below which a histogram with it is no more than noise."""

PASSING = {True: 4.0, False: 2.0}
"""m of the clipping bound over the mean square of rows, of a regression and of classes."""

_PROOF_STEPS = "residuals limited row by row so that |r_i v_i| <= C, v_i = H^-1/2 (u_i, 1)"


@dataclass
class Whitened(Method):
    """Options of whitened descent; the shares are of the budget, in units of 1/nm^2.

    ``clip`` overrides k above.
    """

    steps: int = 20
    ranges: float = 0.10
    norms: float = 0.03
    gram: float = 0.25
    level: float = 0.10
    clip: float | None = None

    continues = True

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Release ranges, lengths, X'X and steps; wide or sparse tables take `FlatDescent`."""
        whole("steps", self.steps)
        self._check("clip")
        for name in ("ranges", "norms", "gram"):
            probability(name, getattr(self, name))
        fraction("level", self.level)
        narrow = isinstance(task.design.x, np.ndarray) and task.design.d <= WIDEST
        if not (narrow and isinstance(task, BoundedTask) and math.isfinite(task.loss.curvature)):
            return FlatDescent().solve(task, session)
        return Run(self, task, session).solution()


class Run:
    """One fit: the plan, then its five steps."""

    def __init__(
        self, options: Whitened, task: BoundedTask, session: Session, summed: Summed | None = None
    ) -> None:
        self.options, self.task, self.door = options, task, session.door
        self.n, self.summed = task.n, summed or self._summed_here
        self.regression = isinstance(task.loss, Squared | Huber)
        most = 0.7 * (1 - options.norms - options.gram)
        mu = session.yardstick(self.n)
        public = task.design.size, task.bounds, self.regression, task.target_range
        self.look = RangePlan.of(PublicFacts(self.n, mu, *public), options.ranges, most)
        self.used = np.append(self.look.used, np.ones(int(task.design.intercept), dtype=bool))
        self.p = int(self.used.sum())
        # A public bound on rows leaves nothing to find out about their lengths.
        self.norms_share = share_of_lengths(options.norms, self.n, mu)
        looked = task.row_bound is None and self.norms_share is not None
        self.norms = Zoom(1, rounds=2) if looked else None
        visible = options.level * (mu * self.n) ** 2 > FEW_ROWS
        has_level = isinstance(task.loss, Squared) and task.design.intercept and visible
        self.level = HeavyMean(self.n, share=options.level) if has_level else None
        self.shares = session.shares(self.n, self._parts())
        self.loss: Loss = task.loss

    def _looks(self) -> dict[str, Part]:
        """The parts for ranges and lengths."""
        looks = {
            "ranges": (self.look.zoom, self.look.share),
            "norms": (self.norms, self.norms_share or 0.0),
        }
        return {
            name: Part(zoom.sensitivity, zoom.rounds, share)
            for name, (zoom, share) in looks.items()
            if zoom is not None
        }

    def _parts(self) -> dict[str, Part]:
        """A part for every step; one calibration serves them all."""
        options, unit = self.options, Sensitivity.per_sample(1.0, "")
        parts = self._looks()
        spent = sum(part.share for part in parts.values()) + options.gram
        parts["gram"] = Part(unit, 1, options.gram)
        if self.level is not None:
            parts |= self.level.parts()
            spent += options.level
        rest = positive("1 - ranges - norms - gram - level", 1 - spent)
        parts["steps"] = Part(unit, options.steps, rest)
        return parts

    def solution(self) -> Solution:
        """Make all releases in turn."""
        task = self.task
        found = self._distributions()
        scaling = self._scaling(found[:-1] if self.regression else found)
        table = scaling.apply(self._features)
        table = table if self.look.used.all() else np.ascontiguousarray(table[:, self.look.used])
        design = Design(table, task.design.intercept)
        centre, deviation = self._target(found[-1]) if self.regression else (0.0, 0.5)
        y = task.y - centre
        metric = self._metric(design)
        inside = self._inside(task.start, scaling, centre)
        start = np.asarray(np.linalg.solve(metric.root, inside[self.used]), dtype=np.float64)
        theta: Array = metric.root @ self.descend(design, y, metric, start, deviation)
        if self.level is not None:
            theta[-1] += self._level(design, y, theta)
        inside[self.used] = theta
        theta = scaling.outside(inside, task.design.intercept, centre)
        return BoundedSolution(theta, self.shares.releases, scaling=scaling)

    def _scaling(self, found: list[Distribution]) -> Scaling:
        """Scale columns by their bounds, or by the released ranges of those that were looked at."""
        bounds = self.look.bounds.copy()
        bounds[self.look.unknown] = np.nan
        return Scaling.of(bounds, found).within(self.look.bounds)

    def _target(self, found: Distribution) -> tuple[float, float]:
        """Centre and deviation of y; without an intercept nothing may be subtracted."""
        mean, deviation = found.mean_and_deviation()
        low, middle, high = found.quantile([0.25, 0.5, 0.75]).tolist()
        if isinstance(self.loss, Huber):
            if self.task.learn_threshold:
                scale = max(high - low, 1e-3 * (found.high - found.low)) / 1.349
                self.loss = Huber(1.345 * scale)
            mean, deviation = middle, min(deviation, self.loss.slope)
        if not self.task.design.intercept:
            return 0.0, math.hypot(mean, deviation)
        return mean, deviation

    def _distributions(self) -> list[Distribution]:
        """Distributions of the columns that are looked at, then of y in a regression."""
        zoom, look = self.look.zoom, self.look
        stated = [anywhere(-1.0, 1.0)] if self.regression and not look.target else []
        if zoom is None:
            return stated
        return self._ranges(zoom, look.start(self.task.target_range)) + stated

    def _ranges(self, zoom: Zoom, start: list[Array | None]) -> list[Distribution]:
        counts = RangeCounts(self.look.unknown, self.look.target)

        def counted(edges: Sequence[Array], width: int) -> Array:
            return self.summed(replace(counts, edges=tuple(edges), width=width))

        return zoom.release_counts(counted, self.n, *self.shares["ranges"], start)

    @cached_property
    def _features(self) -> Array:
        """The rows of the task in the design's units."""
        design = self.task.design
        return np.asarray(design.x if design.unit == 1.0 else design.x * design.unit)

    def _summed_here(self, f: Callable[[Array, Array], Array]) -> Array:
        return f(self._features, self.task.y)

    def _longest(self, counted: Counted) -> float:
        """B: the public row bound, or the upper end of the released lengths. Where noise would
        hide these, the length if all columns were even: a length far too small would make a metric
        in which steps are too long."""
        if self.norms is None:
            return self.task.row_bound or math.sqrt(1 + (self.p - 1) / 3)
        cells = np.linspace(0.0, math.sqrt(self.p), self.norms.cells + 1)
        found = self.norms.release_counts(counted, self.n, *self.shares["norms"], [cells])
        return float(found[0].quantile(0.99))

    def _metric(self, design: Design) -> Metric:
        def counted(edges: Sequence[Array], width: int) -> Array:
            return counts_between(design.norms[:, None], edges, width)

        bound = self._longest(counted)
        at_door = self.shares["gram"]
        return Metric.of(*release_triangle(gram_of(design, bound), bound, self.n, *at_door))

    def clipping(self, size: float | None = None) -> float:
        """Return k of the clipping bound, for rows of m = ``size`` effective coordinates, or p."""
        m = self.p if size is None else size
        affordable = self.n / (self.shares.multiplier * 64 * math.sqrt(self.p * m))
        return self.options.clip or min(4.0, max(1.0, affordable))

    def descend(
        self,
        design: Design,
        y: Array,
        metric: Metric,
        start: Array,
        deviation: float,
        steps: int | None = None,
    ) -> Array:
        """Return the mean of the last half of the iterates, in whitened coordinates."""
        task, count = self.task, self.options.steps if steps is None else steps
        root = metric.root
        size = min(PASSING[self.regression] * metric.size, self.p)
        bound = self.clipping(size) * deviation * math.sqrt(size)
        positive("the clipping bound", bound)
        whitened = replace(task, design=design.whitened(root), y=y, loss=self.loss)
        sensitivity = Sensitivity.per_sample(bound, _PROOF_STEPS)
        mechanism = self.shares.mechanism("steps")
        sampler = FullBatch(self.n)
        receipt = self.door.pay(mechanism, sampler, sensitivity, count, start.shape)
        total = batch_sums(whitened, sampler, receipt, b"", whitened.design.limits(bound))

        def advance(theta: Array) -> Array:
            slope = receipt.release(total(theta)) / self.n
            there = theta - slope / task.loss.curvature
            return self._shrunk(there, root) if task.alpha else there

        kept = (count + 1) // 2
        theta = mean_of_last(start, advance, count, kept)
        return self._without_chance(theta, root, deviation, receipt.std / math.sqrt(kept))

    def _without_chance(self, theta: Array, root: Array, deviation: float, noise: float) -> Array:
        """Drawn towards a model without slopes by what the ``noise`` of the mean gradient, and rows
        with residuals of at most this ``deviation``, explain."""
        table, constant = theta.reshape(self.p, -1), None
        level = np.zeros(table.shape[1])
        if self.task.design.intercept:
            constant = np.asarray(np.linalg.inv(root)[:, -1], np.float64)
            level = constant @ table / (constant @ constant)
        known = self.loss.information(level)
        square = deviation**2 if self.regression else known
        variance = (square / self.n + (noise / self.n) ** 2) / known**2
        return towards_level(table, constant, variance).reshape(theta.shape)

    def _shrunk(self, theta: Array, root: Array) -> Array:
        """The proximal map of alpha/2 |w|^2 in whitened coordinates, intercept left alone."""
        weights = root[:-1] if self.task.design.intercept else root
        rate = self.task.alpha / self.task.loss.curvature
        system = np.eye(self.p) + rate * weights.T @ weights
        return np.asarray(np.linalg.solve(system, theta), dtype=np.float64)

    def _inside(self, theta: Array, scaling: Scaling, centre: float) -> Array:
        """Parameters of the raw columns as those of the scaled ones."""
        if not self.task.design.intercept:
            return theta * column(scaling.reach, theta)
        weights = theta[:-1]
        intercept = theta[-1] - (centre if theta.any() else 0.0) + scaling.centre @ weights
        return np.concatenate([weights * column(scaling.reach, weights), intercept[None]])

    def _level(self, design: Design, y: Array, theta: Array) -> float:
        """The heavy-tailed mean of y minus its prediction."""
        assert self.level is not None
        residual = np.concatenate(
            [y[piece] - rows.scores(theta) for piece, rows in design.chunks()]
        )
        cuts, totals, _ = self.level.release(residual[:, None], self.shares)
        return float(cuts.mean(totals.sums[0] / self.n)[0])


@dataclass(frozen=True)
class RangeCounts:
    """Cells of the columns whose ranges are looked for, and of the target if it is."""

    columns: NDArray[np.intp]
    target: bool
    edges: tuple[Array, ...] = ()
    width: int = 0

    def __call__(self, features: Array, target: Array) -> Array:
        """Count rows below, between and above the edges of each."""
        columns = [features[:, self.columns], *([target] if self.target else [])]
        return counts_between(np.column_stack(columns), self.edges, self.width)
