"""One private fit from beginning to end: distributions, knots, descent, cut, pairs, descent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.additive import pairs
from winsor.additive.descent import Descent, cut_rows
from winsor.additive.knots import knots_of
from winsor.additive.losses import Loss
from winsor.additive.masses import main_effects
from winsor.additive.pairs import Residuals
from winsor.additive.plan import Plan
from winsor.additive.terms import Design, Term
from winsor.contract import Sensitivity
from winsor.linear import residual_cut
from winsor.ranges.binner import Bins
from winsor.ranges.distribution import Distribution
from winsor.release.prepaid import PrepaidDoor
from winsor.sampling.samplers import FullBatch

Array = NDArray[np.float64]

KNOT_BUDGET = 0.02
"""Noise of a prediction, over the spread of the target, that knots may cost if features are not
correlated: less than a thousandth of the variance."""
LEVEL_NOISE = 0.02
"""Noise of the overall level, over the spread of the target."""
FEWEST, MOST = 6, 64
FEWEST_OF_PAIR, MOST_OF_PAIR = 3, 8
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


LossOf = Callable[[list[Distribution]], Loss]
"""The loss, given the released distributions of the columns that are not features."""


def fit(
    table: Array,
    others: Array,
    loss_of: LossOf,
    bins: Bins,
    plan: Plan,
    interactions: int,
    door: PrepaidDoor,
) -> Fitted:
    """``others`` (n, k) are columns beside the features whose distributions the loss needs."""
    features = table.shape[1]
    _, found = bins.release(np.c_[table, others], door, plan.mechanism("ranges"))
    loss = loss_of(found[features:])
    knots = _knots(found[:features], plan.multiplier, len(table))
    terms = main_effects(table, knots, door, plan.mechanism("masses"))
    design = Design(tuple(terms))
    rows = design.rows(table)
    start = np.zeros((design.size, loss.outputs))
    first = Descent(plan.parts["first"].steps, loss.clip, loss.curvature)
    learnt = first.run(design, rows, loss.residual, start, door, plan.mechanism("first"))
    clip = spread = loss.clip
    if "threshold" in plan.parts:
        clip, spread = _cut(loss, loss.residual(rows @ learnt), design, plan, door)
    if "pairs" in plan.parts:
        residuals = Residuals(loss.residual(rows @ learnt), clip, spread)
        chosen = _pairs(table, design, learnt, residuals, interactions, plan, door)
        if chosen:
            design, learnt = design.carried(learnt, chosen)
            rows = design.rows(table)
    last = Descent(plan.parts["last"].steps, clip, loss.curvature)
    learnt = last.run(design, rows, loss.residual, learnt, door, plan.mechanism("last"))
    if "level" in plan.parts:
        learnt[-1] += release_level(loss, loss.residual(rows @ learnt), clip, plan, door)
    return Fitted(design, learnt, found, clip)


def _knots(found: list[Distribution], multiplier: float, n: int) -> list[Array]:
    """Fewer knots where there is more noise, or more features share it."""
    bending = sum(len(knots_of(each, 16)) > 2 for each in found)
    count = int(KNOT_BUDGET * n / (multiplier * max(bending, 1)))
    return [knots_of(each, min(max(count, FEWEST), MOST)) for each in found]


def _cut(
    loss: Loss, residuals: Array, design: Design, plan: Plan, door: PrepaidDoor
) -> tuple[float, float]:
    """Where to cut residuals, and their deviation when cut there."""
    shares = residual_cut.residual_counts(residuals[:, 0], door, plan.mechanism("threshold"))
    n = len(residuals)
    noise = _ILL_CONDITIONED * plan.spent_on("last") * design.reach * math.sqrt(design.size) / n
    least = residual_cut.largest_seen(shares) if loss.means else residual_cut.typical(shares)
    clip = residual_cut.best_cut(shares, noise, least)
    return clip, min(clip, residual_cut.root_mean_square(shares))


def release_level(
    loss: Loss, residuals: Array, clip: float, plan: Plan, door: PrepaidDoor
) -> float:
    """What the cut took from the mean. One number: it can be cut as far out as `LEVEL_NOISE`
    allows, much farther than a gradient."""
    n = len(residuals)
    cut = max(clip, LEVEL_NOISE * n / plan.spent_on("level"))
    proof = "one residual, cut"
    receipt = door.pay(
        plan.mechanism("level"), FullBatch(n), Sensitivity.per_sample(cut, proof), 1, 1
    )
    total = np.sum(cut_rows(residuals, cut), keepdims=True).ravel()
    return loss.shift(float(receipt.release(total)[0]) / n)


def _pairs(
    table: Array,
    design: Design,
    learnt: Array,
    residuals: Residuals,
    most: int,
    plan: Plan,
    door: PrepaidDoor,
) -> list[Term]:
    looked_at = pairs.candidates(design, learnt)
    mechanism = plan.mechanism("pairs")
    chosen = pairs.interacting(table, design, looked_at, residuals, most, door, mechanism)
    if not chosen:
        return []
    room = KNOT_BUDGET * len(table) / (plan.multiplier * len(chosen))
    knots = int(min(max(math.sqrt(room), FEWEST_OF_PAIR), MOST_OF_PAIR))
    return [
        pairs.interaction(design.terms[one], design.terms[other], knots) for one, other in chosen
    ]
