"""What a page says first: the promise for everything that it shows, taken together.

A comparison publishes several runs on the same rows, and whoever reads the page sees them all. So
its first number is what all of them spent, and the number of a single run comes second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from winsor.app.report.collect import Report, RunRecord
from winsor.app.report.statement import RELATIONS, meaning, who_is_protected
from winsor.app.runs.intervals import rounded_up
from winsor.core.contract import Neighbouring
from winsor.core.ledger.guarantee import spent_by, together


@dataclass(frozen=True)
class Headline:
    """The first sentence, what it means, and its number for a tile."""

    promise: str
    meaning: str
    label: str
    shown: str
    note: str


def headline(report: Report) -> Headline:
    """For one run, for runs that add up, or for runs that do not."""
    if len(report.runs) == 1:
        return _of_one(report.runs[0])
    if report.together is None:
        return _of_each(report.runs)
    return _of_all(report.runs, report.together["epsilon"], report.together["delta"])


def _of_one(run: RunRecord) -> Headline:
    first = run.statement.epsilons[0]
    return Headline(
        run.statement.promise,
        run.statement.meaning,
        "epsilon",
        first["shown"],
        f"at delta {first['delta']:.4g}",
    )


def _of_all(runs: list[RunRecord], epsilon: float, delta: float) -> Headline:
    relation = Neighbouring(runs[0].config.budget.relation)
    who = who_is_protected(runs[0].ledger)
    alone = max(run.statement.epsilons[0]["epsilon"] for run in runs)
    shown = rounded_up(epsilon)
    return Headline(
        f"All {len(runs)} runs together were ({shown}, {delta:.3g})-differentially private with "
        f"respect to {RELATIONS[relation].format(who=who)}.",
        f"That is the price of publishing all of them, or the best of them. One run alone, chosen "
        f"without looking at the others, spent at most {rounded_up(alone)}. "
        + meaning(together(run.ledger for run in runs), relation, who),
        f"epsilon, all {len(runs)} runs",
        shown,
        f"at delta {delta:.4g}; each run {rounded_up(alone)}",
    )


def _of_each(runs: list[RunRecord]) -> Headline:
    pairs = [run.statement.epsilons[0] for run in runs]
    shown = rounded_up(max(pair["epsilon"] for pair in pairs))
    delta = max(pair["delta"] for pair in pairs)
    return Headline(
        f"Each of these {len(runs)} runs was ({shown}, {delta:.3g})-differentially private, or "
        "better, on its own data and under its own relation.",
        "There is no one number for all of them: they differ in their data, their relation or in "
        "whom they protect. Where the same rows are in several of them, their losses add up. The "
        "table of runs has each run's own epsilon.",
        "epsilon, largest of a run",
        shown,
        f"at delta {delta:.4g}, not added up",
    )


def published_one_by_one(report: Report) -> list[tuple[int, float]]:
    """(number of runs published, what they spent together), in the order of the page."""
    if report.together is None:
        return []
    relation = Neighbouring(report.runs[0].config.budget.relation)
    delta = report.together["delta"]
    ledgers = [run.ledger for run in report.runs]
    return [
        (count, spent_by(together(ledgers[:count]), delta, relation).epsilon)
        for count in _marks(len(ledgers))
    ]


def _marks(count: int, most: int = 12) -> Sequence[int]:
    return sorted({-(-count * k // most) for k in range(1, most + 1)})
