"""One private fit from beginning to end: distributions, knots, descent, cut, pairs, descent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import Sensitivity
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.additive import pairs
from winsor.tables.additive.descent import Descent
from winsor.tables.additive.knot_counts import main_effects
from winsor.tables.additive.knots import knots_of
from winsor.tables.additive.losses import Loss
from winsor.tables.additive.pairs import Residuals
from winsor.tables.additive.plan import KNOT_BUDGET, Plan
from winsor.tables.additive.rows import LossOf, Rows
from winsor.tables.additive.shrinkage import Chance, curvatures, shrunk
from winsor.tables.additive.terms import Design, Term
from winsor.tables.linear import residual_cut
from winsor.tables.ranges.coarse import STANDARD, anywhere
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]

LEVEL_NOISE = 0.02
"""Noise of the overall level, over the spread of the target."""
FEWEST, MOST = 6, 64
FEWEST_OF_PAIR, MOST_OF_PAIR = 3, 8
LEFT_OUT = Distribution(np.array([-1e-300, 1e-300]), np.ones(1))
"""The distribution of a column that gets no line: one value."""
_ILL_CONDITIONED = 2.0  # correlated features make predictions noisier than knots alone do


@dataclass(frozen=True)
class Fitted:
    """What a fit learnt, all of it released."""

    design: Design
    parameters: Array
    distributions: list[Distribution]
    clip: float

    def scores(self, table: Array) -> Array:
        return self.design.rows(table) @ self.parameters


def fit(
    rows: Rows,
    features: int,
    loss_of: LossOf,
    plan: Plan,
    interactions: int,
    door: PrepaidDoor,
) -> Fitted:
    """The first columns of the plan are ``features``; those after are the values of the loss."""
    found = _distributions(rows, features, plan, door)
    loss = rows.begin(loss_of, found[features:])
    design = Design(tuple(_terms(rows, found[:features], plan, door)))
    start = np.zeros((design.size, loss.outputs))
    learnt = _descended(rows, design, start, loss, loss.clip, "first", plan, door)
    clip = spread = loss.clip
    if "threshold" in plan.parts:
        clip, spread = _cut(loss, rows, design, learnt, plan, door)
    if "pairs" in plan.parts:
        residuals = Residuals(rows.n, loss.outputs, clip, spread)
        chosen = _pairs(rows, design, learnt, residuals, interactions, plan, door)
        if chosen:
            design, learnt = design.carried(learnt, chosen)
    learnt = _descended(rows, design, learnt, loss, clip, "last", plan, door)
    learnt = shrunk(design, learnt, _chance(loss, rows.n, design, learnt, (clip, spread), plan))
    if "level" in plan.parts:
        learnt[-1] += release_level(loss, rows, design, learnt, clip, plan, door)
    return Fitted(design, learnt, found, clip)


def _distributions(rows: Rows, features: int, plan: Plan, door: PrepaidDoor) -> list[Distribution]:
    """Of all columns; for lines, of which the ends are all that counts, cut to their bounds."""
    bins = plan.bins
    found: list[Distribution | None] = [None] * bins.columns
    if "ranges" in plan.parts:
        looked = bins.looked

        def counted(edges: Sequence[Array], width: int) -> Array:
            own = [np.empty(0)] * (looked[-1] + 1)  # none of columns that are not looked at
            for column, each in zip(looked, edges, strict=True):
                own[column] = each
            return rows.counted(own, width)[looked]

        mechanism = plan.mechanism("ranges")
        seen = bins.zoom.release_counts(counted, rows.n, door, mechanism, bins.start)
        for column, each in zip(looked, seen, strict=True):
            found[column] = each
    if plan.lines:
        cut = [bins.by_bounds(column, found[column]) for column in range(features)]
        values = range(features, bins.columns)
        found = [*cut, *(found[column] or bins.by_bounds(column) for column in values)]
    if plan.used is not None:
        found = [each if j in plan.used else LEFT_OUT for j, each in enumerate(found)]
    return [each or anywhere(*STANDARD) for each in found]


def _terms(rows: Rows, found: list[Distribution], plan: Plan, door: PrepaidDoor) -> list[Term]:
    if plan.flat:
        return []
    if plan.lines:
        looked = plan.bins.looked if "ranges" in plan.parts else []
        return [
            _line(feature, own[[0, -1]], each if feature in looked else None)
            for feature, each in enumerate(found)
            if len(own := knots_of(each, 2)) > 1
        ]
    knots = _knots(found, plan.multiplier, rows.n)
    return main_effects(rows.hats, rows.n, knots, door, plan.mechanism("masses"))


def _line(feature: int, ends: Array, found: Distribution | None) -> Term:
    """A term of which no rows were counted: they are where the distribution says, or who knows."""
    if found is None:
        return Term((feature,), (ends,), (np.full(2, 0.5),))
    mean, deviation = found.mean_and_deviation()
    place = (mean - ends[0]) / (ends[1] - ends[0])
    shared = place * (1 - place) - (deviation / (ends[1] - ends[0])) ** 2
    masses, overlaps = np.array([1 - place, place]), np.array([max(shared, 0.0)])
    return Term((feature,), (ends,), (masses,), (overlaps,))


def _descended(
    rows: Rows,
    design: Design,
    start: Array,
    loss: Loss,
    clip: float,
    name: str,
    plan: Plan,
    door: PrepaidDoor,
) -> Array:
    descent = Descent(plan.parts[name].steps, clip, loss.curvature)

    def gradient(parameters: Array) -> Array:
        return rows.gradient(design, parameters, clip)

    return descent.run(design, gradient, rows.n, start, door, plan.mechanism(name))


def _knots(found: list[Distribution], multiplier: float, n: int) -> list[Array]:
    """Fewer knots where there is more noise, or more features share it: a line takes one."""
    sizes = [len(knots_of(each, 16)) for each in found]
    bending, lines = (sum(each > 2 for each in sizes), sum(each == 2 for each in sizes))
    count = int((KNOT_BUDGET * n / multiplier - lines) / max(bending, 1))
    return [knots_of(each, min(max(count, FEWEST), MOST)) for each in found]


def _cut(
    loss: Loss, rows: Rows, design: Design, learnt: Array, plan: Plan, door: PrepaidDoor
) -> tuple[float, float]:
    """Where to cut residuals, and their deviation when cut there."""
    n, counts = rows.n, rows.residual_counts(design, learnt)
    shares = residual_cut.release_counts(counts, n, door, plan.mechanism("threshold"))
    noise = _ILL_CONDITIONED * plan.spent_on("last") * design.reach * math.sqrt(design.size) / n
    least = residual_cut.largest_seen(shares) if loss.means else residual_cut.typical(shares)
    clip = residual_cut.best_cut(shares, noise, least)
    return clip, min(clip, residual_cut.root_mean_square(shares))


def _chance(
    loss: Loss, n: int, design: Design, learnt: Array, cut: tuple[float, float], plan: Plan
) -> Chance:
    """What noise and rows may have done to ``learnt``: ``cut`` is where residuals were cut in the
    last descent, and their deviation."""
    information = loss.information(learnt[-1])
    along = information * curvatures(design)
    left, noise = np.ones(design.size), np.zeros(design.size)
    for name, clip in (("first", loss.clip), ("last", cut[0])):
        descent = Descent(plan.parts[name].steps, clip, loss.curvature)
        mechanism = plan.mechanism(name)
        rate = descent.rate(design, n, mechanism.noise_multiplier)
        stays, deviation = descent.response(along, rate)
        std = mechanism.noise_multiplier * clip * design.reach / n
        left, noise = left * stays, noise * stays**2 + (std * deviation) ** 2
    variance = cut[1] ** 2 if "threshold" in plan.parts else information
    return Chance(noise, 1 - left, variance / (n * information**2))


def release_level(
    loss: Loss,
    rows: Rows,
    design: Design,
    learnt: Array,
    clip: float,
    plan: Plan,
    door: PrepaidDoor,
) -> float:
    """What the cut took from the mean. One number: it can be cut as far out as `LEVEL_NOISE`
    allows, much farther than a gradient."""
    n = rows.n
    cut = max(clip, LEVEL_NOISE * n / plan.spent_on("level"))
    proof = "one residual, cut"
    receipt = door.pay(
        plan.mechanism("level"), FullBatch(n), Sensitivity.per_sample(cut, proof), 1, 1
    )
    return loss.shift(float(receipt.release(rows.residual_sum(design, learnt, cut))[0]) / n)


def _pairs(
    rows: Rows,
    design: Design,
    learnt: Array,
    residuals: Residuals,
    most: int,
    plan: Plan,
    door: PrepaidDoor,
) -> list[Term]:
    looked_at = pairs.candidates(design, learnt)
    mechanism = plan.mechanism("pairs")
    sums = rows.pair_sums(design, learnt, looked_at, residuals.clip)
    chosen = pairs.interacting(sums, design, looked_at, residuals, most, door, mechanism)
    if not chosen:
        return []
    room = KNOT_BUDGET * rows.n / (plan.multiplier * len(chosen))
    knots = int(min(max(math.sqrt(room), FEWEST_OF_PAIR), MOST_OF_PAIR))
    return [
        pairs.interaction(design.terms[one], design.terms[other], knots) for one, other in chosen
    ]
