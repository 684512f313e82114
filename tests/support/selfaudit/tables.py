"""Sums over the rows of a table under attack: additive models and generalised linear ones.

Each experiment calls the very function of the library that makes a release, on two datasets that
differ in the record that moves it most, through a real prepaid door; the adversary projects what
leaves on the line between the two values before noise.

    masses        tents of every feature
    overlaps      the same by a record half way between knots, where products of tents move most
    descent       one step's sum of rows times cut residuals
    pairs         residuals in the cells of every pair
    residuals     the histogram of residuals
    information   Fisher information
    squares       the sum of squared residuals
    histograms    one round of `winsor.tables.ranges`
    gram          X'X of whitened descent and of sufficient statistics
    steps         one step of whitened descent
    score         one step's sum of a generalised linear model
    level         the overall level of an additive model
    moments       what `PrivateScaler` releases
    tails         cells of distances of the winsorised mean, which its cuts are read from
    winsorised    its last sums, by group
    categories    how many rows hold each category of two columns of texts
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from winsor_papers.neighbouring import Floats, audit_key

from winsor.audit.curve import ABSENT, PRESENT
from winsor.core.contract import Neighbouring, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian, ThresholdedGaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.planning.budget import Target
from winsor.planning.shares import Part, Session, Shares
from winsor.tables.additive import pairs, terms
from winsor.tables.additive.descent import Descent
from winsor.tables.additive.fitting import Fit, Table
from winsor.tables.additive.plan import Plan
from winsor.tables.additive.terms import Design as AdditiveDesign
from winsor.tables.additive.terms import Term
from winsor.tables.design import Design
from winsor.tables.linear import metric, residual_cut, score_rows, whitened
from winsor.tables.linear.score_rows import ScoreRows
from winsor.tables.linear.task import BoundedTask
from winsor.tables.losses import Squared
from winsor.tables.means.winsorised import Cuts, HeavyMean
from winsor.tables.ranges import categories
from winsor.tables.ranges.bins import Bins
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.zoom import Zoom
from winsor.tables.transformers import CutMoments, release_moments

History = list[tuple[DpEvent, int]]
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
Release = Callable[[Floats, PrepaidDoor, Gaussian], Any]

OTHERS = 10
CLIP, REACH = 2.0, 2.0
FAR = 3.0927
"""Just inside the farthest row that votes in a generalised linear model of two such features."""
SHOWN = 1e-6
"""The chance that a category of one record is seen."""
KNOTS = np.array([0.0, 1.0, 2.0])
_EVEN = np.full(3, 1 / 3)
DESIGN = AdditiveDesign(tuple(Term((j,), (KNOTS,), (_EVEN,)) for j in range(2)))


class OpenDoor(PrepaidDoor):
    """A prepaid door that keeps the value before and after noise."""

    before: Floats
    after: Floats
    std: float

    def pay(self, *arguments: Any) -> Receipt:
        receipt = super().pay(*arguments)
        release, self.std = receipt.release, receipt.std

        def kept_release(value: Floats) -> Floats:
            self.before = value.copy()
            self.after = release(value).copy()
            return self.after

        receipt.release = kept_release  # type: ignore[method-assign]
        return receipt


# ------------------------------------------------------- releases of (n, 3) rows: two features, r


def _masses(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    terms.main_effects(_table(rows).tents, len(rows), [KNOTS, KNOTS], door, noise)


def _descent(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    table = _table(rows)
    start = np.zeros((DESIGN.size, 1))
    Descent(1, CLIP).run(
        DESIGN, lambda at: table.gradient(DESIGN, at, CLIP), len(rows), start, door, noise
    )


def _pairs(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    start = np.zeros((DESIGN.size, 1))
    sums = _table(rows).pair_sums(DESIGN, start, [(0, 1)], CLIP)
    residuals = pairs.Residuals(len(rows), 1, CLIP, CLIP)
    pairs.interacting(sums, DESIGN, [(0, 1)], residuals, 1, door, noise)


def _table(rows: Floats) -> Table:
    """Features, and a target whose residual at zero is the third column."""
    table = Table(rows[:, :2], rows[:, 2:])
    table.begin(lambda values, _: (Squared(), values[:, 0]), [])
    return table


def _residuals(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    residual_cut.residual_counts(rows[:, 2], door, noise)


def _information(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    score_rows.release_information(rows[:, :2], np.full(len(rows), 9.0), 3.0, REACH, door, noise)


def _squares(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    score_rows.release_squares(rows[:, 2], CLIP, door, noise)


def _histograms(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    Zoom(2, rounds=1).release(rows[:, :2], door, noise)


def _gram(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    design = Design(rows[:, :2], False)
    metric.release_triangle(metric.gram_of(design, REACH), REACH, len(rows), door, noise)


def _steps(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    design, start = Design(rows[:, :2], False), np.zeros(2)
    bounds = np.tile([-1.0, 1.0], (2, 1))
    task = BoundedTask(design, rows[:, 2], Squared(), 0.0, start, 1.0, bounds=bounds)
    target = Target(1.0, 1e-5, None, door.relation)
    run = whitened.Run(whitened.Whitened(steps=1), task, Session(door, target, b"", 1.0))
    whole = noise.noise_multiplier / run.shares.parts["steps"].scale  # all of it on the step
    run.shares = replace(run.shares, multiplier=whole)
    run.descend(design, rows[:, 2], metric.Metric.of(np.eye(2), 0.0), start, 1.0)


def _score(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    normal = Distribution(np.linspace(-2.0, 2.0, 5), np.full(4, 0.25))
    held = ScoreRows(rows[:, :2], [normal, normal], None)
    held.pay(door, noise, CLIP, 1).release(held.score(rows[:, 2], CLIP))


def _level(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    level = Part(Sensitivity.per_sample(1.0, ""), 1, 1.0)
    whole = Plan(Shares({"level": level}, noise.noise_multiplier), Bins(3))
    table, start = _table(rows), np.zeros((DESIGN.size, 1))
    fit = Fit(table, 2, whole, door)
    fit.loss = table.loss
    fit.release_level(DESIGN, start, CLIP)


def _moments(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    sums = CutMoments(np.zeros(2), np.ones(2))(rows[:, :2])
    release_moments(sums, len(rows), door, noise)


def _tails(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    HeavyMean(len(rows), 2).tails(rows[:, :2], np.zeros(2), np.ones(2), door, noise)


def _winsorised(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    ends, nothing = np.ones(2), np.zeros((2, 2))
    groups = (rows[:, 2] > 0).astype(np.int64)
    plan = HeavyMean(len(rows), 2, 2)
    plan.totals(rows[:, :2], Cuts(-ends, ends, nothing, ends), groups, door, noise)


def _categories(rows: Floats, door: PrepaidDoor, noise: Gaussian) -> None:
    seldom = ThresholdedGaussian(noise.noise_multiplier, SHOWN)
    categories.release(categories.as_texts(rows[:, :2]), door, seldom, OTHERS + 1)


# release, ordinary row, record, and what becomes of the record where it is replaced
SUMS: dict[str, tuple[Release, Floats, Floats, Floats]] = {
    "masses": (_masses, np.array([1, 1, 0.0]), np.array([0, 0, 0.0]), np.array([2, 2, 0.0])),
    "overlaps": (_masses, np.array([1, 1, 0.0]), np.array([0.5, 0.5, 0]), np.array([2, 2, 0.0])),
    "descent": (_descent, np.array([1, 1, 0.0]), np.array([2, 0, 1e9]), np.array([2, 0, -1e9])),
    "pairs": (_pairs, np.array([1, 1, 0.0]), np.array([2, 0, 1e9]), np.array([2, 0, -1e9])),
    "residuals": (_residuals, np.array([0, 0, 0.1]), np.array([0, 0, 1e9]), np.array([0, 0, -1e9])),
    "information": (
        _information, np.array([0, 0, 0.0]), np.array([REACH, 0, 0.0]), np.array([0, REACH, 0.0])
    ),
    "histograms": (
        _histograms, np.array([1, 1, 0.0]), np.array([1e9, -1e9, 0.0]), np.array([-1e9, 1e9, 0.0])
    ),
    "gram": (_gram, np.array([0, 0, 0.0]), np.array([1e9, 0, 0.0]), np.array([0, 1e9, 0.0])),
    "winsorised": (
        _winsorised, np.array([0, 0, 0.0]), np.array([1e9, 1e9, 1.0]), np.array([-1e9, -1e9, 1.0])
    ),
    "steps": (_steps, np.array([0, 0, 0.0]), np.array([1, 0, 1e9]), np.array([1, 0, -1e9])),
    "score": (_score, np.array([0, 0, 0.0]), np.array([FAR, 0, 1e9]), np.array([FAR, 0, -1e9])),
    "level": (_level, np.array([0, 0, 0.0]), np.array([0, 0, 1e9]), np.array([0, 0, -1e9])),
    "moments": (
        _moments, np.array([0, 0, 0.0]), np.array([1e9, 1e9, 0.0]), np.array([-1e9, -1e9, 0.0])
    ),
    "tails": (_tails, np.array([1, 1, 0.0]), np.array([1e9, 1e9, 0]), np.array([-1e9, -1e9, 0])),
    "categories": (
        _categories, np.array([1, 1, 0.0]), np.array([1, 1, 0.0]), np.array([2, 2, 0.0])
    ),
    "squares": (_squares, np.array([0, 0, 0.0]), np.array([0, 0, 1e9]), np.array([0, 0, 0.0])),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class TableExperiment:
    """One release by the library's own function, seen along the line that the record moves it."""

    name: str
    noise_multiplier: float
    relation: Neighbouring = ADD

    def _rows(self, dataset: int) -> Floats:
        _, ordinary, record, other = SUMS[self.name]
        rows = np.tile(ordinary, (OTHERS, 1))
        if dataset == PRESENT:
            return np.vstack([rows, record])
        return np.vstack([rows, other]) if self.relation is REPLACE else rows

    def _released(self, dataset: int, *label: object) -> OpenDoor:
        door = OpenDoor(Ledger({}), self.relation, audit_key(self.name, dataset, *label))
        SUMS[self.name][0](self._rows(dataset), door, Gaussian(self.noise_multiplier))
        return door

    @property
    def history(self) -> History:
        return self._released(PRESENT, "history").ledger.history()

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        present, absent = (self._released(each, "line").before for each in (PRESENT, ABSENT))
        line = present - absent
        line = line / math.sqrt(float(np.sum(line**2)))
        doors = (self._released(dataset, part, run) for run in range(runs))
        return np.array([float(np.sum(line * door.after)) / door.std for door in doors])
