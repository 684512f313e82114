"""One private fit from beginning to end: distributions, knots, descent, cut, pairs, descent.

A fit asks private rows for sums and nothing else. `Table` holds rows in one place;
`winsor.tables.partitions` adds up what the tables of partitions say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from winsor.core.arithmetic.rows import blocks, sum_rows, summed
from winsor.core.contract import Sensitivity
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.additive import pairs
from winsor.tables.additive.descent import Descent, cut_rows
from winsor.tables.additive.knots import knots_of
from winsor.tables.additive.pairs import Residuals
from winsor.tables.additive.plan import KNOT_BUDGET, Plan
from winsor.tables.additive.shrinkage import Chance, curvatures, shrunk
from winsor.tables.additive.terms import Design, Term, main_effects, tent_sums
from winsor.tables.linear import residual_cut
from winsor.tables.losses import Loss
from winsor.tables.ranges.coarse import STANDARD, anywhere
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.zoom import counts_between

Array = NDArray[np.float64]
LossOf = Callable[[Array, list[Distribution]], tuple[Loss, Array]]
"""The loss of rows with these values and their targets, given the released distributions."""

LEVEL_NOISE = 0.02
"""Noise of the overall level, over the spread of the target."""
FEWEST, MOST = 6, 64
FEWEST_OF_PAIR, MOST_OF_PAIR = 3, 8
LEFT_OUT = Distribution(np.array([-1e-300, 1e-300]), np.ones(1))
"""The distribution of a column that gets no line: one value."""
_ILL_CONDITIONED = 2.0  # correlated features make predictions noisier than knots alone do


class AdditiveRows(Protocol):
    """Private rows of a fit, wherever they are."""

    @property
    def n(self) -> int:
        """The number of rows, which is public."""

    def begin(self, loss_of: LossOf, found: list[Distribution]) -> Loss:
        """Settle the loss, whose residuals later sums are of."""

    def total(self, part: Callable[..., Array], *arguments: Any) -> Array:
        """Return the sum over all rows of a method of `Table`, with these arguments."""


class Table:
    """Rows in one place: features, and the values that the loss is of, such as a target."""

    def __init__(self, features: Array, values: Array) -> None:
        self.features, self.values = features, values
        self.n = len(features)
        self._design: Design | None = None

    def begin(self, loss_of: LossOf, found: list[Distribution]) -> Loss:
        """Settle the loss, whose residuals later sums are of."""
        self.loss, y = loss_of(self.values, found)
        self._y = y[:, None] if self.loss.outputs == 1 else y
        return self.loss

    def total(self, part: Callable[..., Array], *arguments: Any) -> Array:
        """Return what ``part``, one of the methods below, says of these rows."""
        return part(self, *arguments)

    def counted(self, edges: Sequence[Array], width: int) -> Array:
        """Count rows in cells of the features, and of as many values as there are edges for."""
        table = np.c_[self.features, self.values][:, : len(edges)]
        return counts_between(table, edges, width)

    def tents(self, knots: Sequence[Array], width: int) -> Array:
        """Return the `tent_sums` of the features."""
        return tent_sums(self.features, knots, width)

    def gradient(self, design: Design, parameters: Array, clip: float) -> Array:
        """Return sum_i phi_i r_i', residuals cut to length ``clip``."""
        cut = cut_rows(self._residuals(design, parameters), clip)
        pieces = zip(self._across, blocks(self.n), strict=True)
        return summed(across @ cut[own] for across, own in pieces)

    def residual_counts(self, design: Design, parameters: Array) -> Array:
        """Count residuals in the cells of `residual_cut`."""
        return residual_cut.counts_in_cells(self._residuals(design, parameters)[:, 0])

    def pair_sums(
        self, design: Design, parameters: Array, looked_at: Sequence[pairs.Pair], clip: float
    ) -> Array:
        """Return `pairs.pair_sums` of residuals cut to length ``clip``."""
        cut = cut_rows(self._residuals(design, parameters), clip)
        return pairs.pair_sums(self.features, design, looked_at, cut)

    def residual_sum(self, design: Design, parameters: Array, cut: float) -> Array:
        """Return the (1,) sum of residuals, cut."""
        residuals = cut_rows(self._residuals(design, parameters), cut)
        return sum_rows(residuals)

    def _residuals(self, design: Design, parameters: Array) -> Array:
        """Negative gradients in the scores."""
        if design is not self._design:  # a descent asks for the same one at every step
            self._design, self._rows = design, design.rows(self.features)
            self._across = [self._rows[own].T.tocsr() for own in blocks(self.n)]
        return -self.loss.residual(self._rows @ parameters, self._y)


@dataclass(frozen=True)
class Fitted:
    """What a fit learnt, all of it released."""

    design: Design
    parameters: Array
    distributions: list[Distribution]
    clip: float

    def scores(self, table: Array) -> Array:
        """Return (n, outputs) scores of the rows of ``table``."""
        return self.design.rows(table) @ self.parameters


class Fit:
    """One fit: the rows, the plan at its door, and the loss once it is settled."""

    loss: Loss

    def __init__(self, rows: AdditiveRows, features: int, plan: Plan, door: PrepaidDoor) -> None:
        """The first columns of the plan are ``features``; those after are values of the loss."""
        self.rows, self.features, self.plan = rows, features, plan
        self.shares, self.n = plan.shares.at(door), rows.n

    def run(self, loss_of: LossOf, interactions: int) -> Fitted:
        """Release everything in turn; at most so many pairs get ``interactions``."""
        found = self._distributions()
        self.loss = loss = self.rows.begin(loss_of, found[self.features :])
        design = Design(tuple(self._terms(found[: self.features])))
        start = np.zeros((design.size, loss.outputs))
        learnt = self._descended(design, start, loss.clip, "first")
        clip = spread = loss.clip
        if "threshold" in self.shares:
            clip, spread = self._cut(design, learnt)
        if "pairs" in self.shares:
            residuals = Residuals(self.n, loss.outputs, clip, spread)
            chosen = self._pairs(design, learnt, residuals, interactions)
            if chosen:
                design, learnt = design.carried(learnt, chosen)
        learnt = self._descended(design, learnt, clip, "last")
        learnt = shrunk(design, learnt, self._chance(design, learnt, (clip, spread)))
        if "level" in self.shares:
            learnt[-1] += self.release_level(design, learnt, clip)
        return Fitted(design, learnt, found, clip)

    def _distributions(self) -> list[Distribution]:
        """Distributions of all columns; for lines, whose ends are all that counts, cut to their
        bounds."""
        plan, bins, looked = self.plan, self.plan.bins, self.plan.bins.looked
        found: list[Distribution | None] = [None] * bins.columns
        if "ranges" in self.shares:

            def counted(edges: Sequence[Array], width: int) -> Array:
                own = [np.empty(0)] * (looked[-1] + 1)  # none of columns that are not looked at
                for column, each in zip(looked, edges, strict=True):
                    own[column] = each
                return self.rows.total(Table.counted, own, width)[looked]

            seen = bins.zoom.release_counts(counted, self.n, *self.shares["ranges"], bins.start)
            for column, each in zip(looked, seen, strict=True):
                found[column] = each
        if plan.lines:
            cut = [bins.by_bounds(column, found[column]) for column in range(self.features)]
            values = range(self.features, bins.columns)
            found = [*cut, *(found[column] or bins.by_bounds(column) for column in values)]
        if plan.used is not None:
            found = [each if j in plan.used else LEFT_OUT for j, each in enumerate(found)]
        return [each or anywhere(*STANDARD) for each in found]

    def _terms(self, found: list[Distribution]) -> list[Term]:
        if self.plan.flat:
            return []
        if self.plan.lines:
            looked = self.plan.bins.looked if "ranges" in self.shares else []
            return [
                _line(feature, own[[0, -1]], each if feature in looked else None)
                for feature, each in enumerate(found)
                if len(own := knots_of(each, 2)) > 1
            ]
        knots = _knots(found, self.shares.multiplier, self.n)

        def tents(own: Sequence[Array], width: int) -> Array:
            return self.rows.total(Table.tents, list(own), width)

        return main_effects(tents, self.n, knots, *self.shares["masses"])

    def _descended(self, design: Design, start: Array, clip: float, name: str) -> Array:
        descent = self._descent(name, clip)

        def gradient(parameters: Array) -> Array:
            return self.rows.total(Table.gradient, design, parameters, clip)

        return descent.run(design, gradient, self.n, start, *self.shares[name])

    def _descent(self, name: str, clip: float) -> Descent:
        return Descent(self.shares.parts[name].steps, clip, self.loss.curvature)

    def _cut(self, design: Design, learnt: Array) -> tuple[float, float]:
        """Return the value to cut residuals at, and their deviation when cut there."""
        counts = self.rows.total(Table.residual_counts, design, learnt)
        shares = residual_cut.release_counts(counts, self.n, *self.shares["threshold"])
        spent = self.shares.spent_on("last")
        noise = _ILL_CONDITIONED * spent * design.reach * math.sqrt(design.size) / self.n
        means = self.loss.means
        least = residual_cut.largest_seen(shares) if means else residual_cut.typical(shares)
        clip = residual_cut.best_cut(shares, noise, least)
        return clip, min(clip, residual_cut.root_mean_square(shares))

    def _chance(self, design: Design, learnt: Array, cut: tuple[float, float]) -> Chance:
        """What noise and rows may have done to ``learnt``: ``cut`` is where residuals were cut in
        the last descent, and their deviation."""
        information = float(np.mean(self.loss.information(learnt[-1])))
        along = information * curvatures(design)
        left, noise = np.ones(design.size), np.zeros(design.size)
        for name, clip in (("first", self.loss.clip), ("last", cut[0])):
            descent, multiplier = self._descent(name, clip), self.shares[name][1].noise_multiplier
            rate = descent.rate(design, self.n, multiplier)
            stays, deviation = descent.response(along, rate)
            std = multiplier * clip * design.reach / self.n
            left, noise = left * stays, noise * stays**2 + (std * deviation) ** 2
        variance = cut[1] ** 2 if "threshold" in self.shares else information
        return Chance(noise, 1 - left, variance / (self.n * information**2))

    def release_level(self, design: Design, learnt: Array, clip: float) -> float:
        """Release what the cut took from the mean. One number can be cut as far out as
        `LEVEL_NOISE` allows, much farther than a gradient."""
        cut = max(clip, LEVEL_NOISE * self.n / self.shares.spent_on("level"))
        door, mechanism = self.shares["level"]
        bound = Sensitivity.per_sample(cut, "one residual, cut")
        receipt = door.pay(mechanism, FullBatch(self.n), bound, 1, 1)
        total = self.rows.total(Table.residual_sum, design, learnt, cut)
        return self.loss.shift(float(receipt.release(total)[0]) / self.n)

    def _pairs(self, design: Design, learnt: Array, residuals: Residuals, most: int) -> list[Term]:
        looked_at = pairs.candidates(design, learnt)
        sums = self.rows.total(Table.pair_sums, design, learnt, looked_at, residuals.clip)
        at_door = self.shares["pairs"]
        chosen = pairs.interacting(sums, design, looked_at, residuals, most, *at_door)
        if not chosen:
            return []
        room = KNOT_BUDGET * self.n / (self.shares.multiplier * len(chosen))
        knots = int(min(max(math.sqrt(room), FEWEST_OF_PAIR), MOST_OF_PAIR))
        return [
            pairs.interaction(design.terms[one], design.terms[other], knots)
            for one, other in chosen
        ]


def _line(feature: int, ends: Array, found: Distribution | None) -> Term:
    """A term of which no rows were counted: they are where the distribution says, or anywhere."""
    if found is None:
        return Term((feature,), (ends,), (np.full(2, 0.5),))
    mean, deviation = found.mean_and_deviation()
    place = (mean - ends[0]) / (ends[1] - ends[0])
    shared = place * (1 - place) - (deviation / (ends[1] - ends[0])) ** 2
    masses, overlaps = np.array([1 - place, place]), np.array([max(shared, 0.0)])
    return Term((feature,), (ends,), (masses,), (overlaps,))


def _knots(found: list[Distribution], multiplier: float, n: int) -> list[Array]:
    """Fewer knots where there is more noise, or more features share it: a line takes one."""
    sizes = [len(knots_of(each, 16)) for each in found]
    bending, lines = (sum(each > 2 for each in sizes), sum(each == 2 for each in sizes))
    count = int((KNOT_BUDGET * n / multiplier - lines) / max(bending, 1))
    return [knots_of(each, min(max(count, FEWEST), MOST)) for each in found]
