"""What a page shows first: the promise for everything on it, and the picture of what it bought.

A comparison publishes several runs on the same rows, and whoever reads the page sees them all. So
its first number is what all of them spent, and the number of a single run comes second. The picture
shows what was spent against the plan, the metric that it bought, and a tail of the gradient norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from winsor.app.report.collect import Report, RunRecord, Variant
from winsor.app.report.statement import RELATIONS, meaning, who_is_protected
from winsor.app.runs.summary import rounded_up, share_interval
from winsor.charts import Chart, Series
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
    """Write the headline of one run, of runs that add up, or of runs that do not."""
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


SHARES = ("accuracy",)
"""Metrics that are shares of independent held-out rows, so that one run has an interval too."""
PLAN_POINTS = 6


def picture(report: Report, charts: Sequence[Chart]) -> list[Chart]:
    """Epsilon, what it bought, and a tail if one of ``charts`` shows it.

    Several variants have their ranking instead of the curve of the main metric.
    """
    spent = publishing(report) if len(report.runs) > 1 else epsilon(report)
    bought = [chart for chart in charts if chart.key == "held-out-0"]
    tails = [chart for chart in charts if "-tail-" in chart.key]
    chosen = [spent, *(bought if len(report.variants) == 1 else []), *tails[:1]]
    return [chart for chart in chosen if not chart.empty]


# ------------------------------------------------------------------------------------- epsilon


def epsilon(report: Report) -> Chart:
    """Certified epsilon over the steps, against the budget and the rest of the plan."""
    lines = [_spent(i, variant) for i, variant in enumerate(report.variants)]
    if len(lines) > 1 and len({series.points for series in lines}) == 1:
        lines = [replace(lines[0], label="every variant")]
    if len(report.variants) == 1:
        lines += _plan(report.runs[0])
    deltas = {run.config.budget.delta for run in report.runs}
    at = f"delta {deltas.pop():.3g}" if len(deltas) == 1 else "each run's own delta"
    return Chart(
        key="epsilon",
        title="Epsilon spent",
        x_label="step",
        y_label="epsilon",
        series=tuple(lines),
        from_zero=True,
        note=f"Certified at the marked steps, at {at}; computed from the ledger.",
    )


def _spent(colour: int, variant: Variant) -> Series:
    # Seeds of one variant spend the same, unless one is unfinished: show the longest.
    longest = max(variant.runs, key=lambda run: run.curve[-1][0])
    points = tuple((float(step), value) for step, value in longest.curve)
    label = "spent" if len(variant.runs) == 1 else variant.label
    return Series(label, points, colour=colour, markers=True)


def _plan(run: RunRecord) -> list[Series]:
    """The budget as a level, and what the remaining steps will spend if they go on alike."""
    done, planned = len(run.ledger), planned_steps(run)
    lines = []
    history = run.ledger.history()
    if done < planned and len(history) == 1:
        delta, relation = run.config.budget.delta, Neighbouring(run.config.budget.relation)
        marks = sorted({done + -(-(planned - done) * k // PLAN_POINTS) for k in range(7)})
        points = [
            (float(m), spent_by([(history[0][0], m)], delta, relation).epsilon) for m in marks
        ]
        lines.append(Series("the rest of the plan", tuple(points), colour=0, dashed=True))
    if run.config.budget.epsilon is not None:
        level, end = run.config.budget.epsilon, float(max(done, planned))
        label = f"budget {level:g}"
        lines.append(Series(label, ((0.0, level), (end, level)), colour=1, dashed=True))
    return lines


def planned_steps(run: RunRecord) -> int:
    """The steps that the configuration asks for."""
    training = run.config.training
    if training.steps is not None:
        return training.steps
    rate = run.ledger.config.get("rate", 1.0)
    return max(1, math.ceil((training.epochs or 0.0) / rate - 1e-9))


def publishing(report: Report) -> Chart:
    """What it costs to publish one run after the other."""
    points = [(float(count), value) for count, value in published_one_by_one(report)]
    lines: tuple[Series, ...] = ()
    if points:
        alone = max(run.statement.epsilons[0]["epsilon"] for run in report.runs)
        level = ((points[0][0], alone), (points[-1][0], alone))
        lines = (
            Series("all that were published", tuple(points), colour=0, markers=True),
            Series(f"one run alone, {rounded_up(alone)}", level, colour=1, dashed=True),
        )
    return Chart(
        key="publishing",
        title="What publishing costs",
        x_label="runs published",
        y_label="epsilon",
        series=lines,
        from_zero=True,
        note="Certified for the composition of their ledgers, in the order of this page.",
    )


# ------------------------------------------------------------------------------------ intervals


def with_interval(line: Series, metric: str, held_out_rows: int | None) -> Series:
    """A line of shares with the 95 % interval of so many held-out rows as its band."""
    if metric not in SHARES or not held_out_rows or line.band:
        return line
    band = tuple((x, *share_interval(y, held_out_rows)) for x, y in line.points)
    return replace(line, band=band)
