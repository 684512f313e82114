"""Which charts a report has: those for which the runs hold data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from winsor.report.charts import Chart
from winsor.report.collect import Report, RunRecord, Variant
from winsor.report.series import Point, Series, over_seeds, thin
from winsor.runs.directory import Row
from winsor.runs.tasks import higher_is_better

Value = Callable[[Row], float | None]
NOT_PRIVATE = "Exact values of private rows, recorded because record.debug was set."


def figures(report: Report) -> list[Chart]:
    """All charts with something to show, utility and epsilon first."""
    charts = [
        *_held_out(report),
        _epsilon(report),
        *_rule_numbers(report),
        _learning_rate(report),
        *_not_private(report),
    ]
    return [chart for chart in charts if not chart.empty]


def _points(run: RunRecord, value: Value) -> list[Point]:
    found = ((float(row["step"]), value(row)) for row in run.rows)
    return [(step, y) for step, y in found if y is not None]


def _lines(report: Report, value: Value) -> tuple[Series, ...]:
    """One line per variant that has such values, the mean over its seeds."""
    lines = (
        over_seeds(variant.label, [_points(run, value) for run in variant.runs], colour)
        for colour, variant in enumerate(report.variants)
    )
    return tuple(line for line in lines if line.points)


def _names(report: Report, section: str) -> list[str]:
    rows: Iterable[Row] = (row for run in report.runs for row in run.rows)
    return list(dict.fromkeys(name for row in rows for name in row.get(section, {})))


def _reader(section: str, name: str) -> Value:
    return lambda row: row.get(section, {}).get(name)


def _held_out(report: Report) -> list[Chart]:
    main = report.main_metric
    names = sorted(_names(report, "held_out"), key=lambda name: name != main)
    several = any(len(variant.runs) > 1 for variant in report.variants)
    return [
        Chart(
            key=f"held-out-{i}",
            title=f"Held-out {_words(name)}",
            x_label="step",
            y_label=_words(name),
            series=_lines(report, _reader("held_out", name)),
            note=("Mean over seeds; the band is their range. " if several else "")
            + ("Higher is better." if higher_is_better(name) else "Lower is better.")
            * (name != "token_accuracy"),
        )
        for i, name in enumerate(names)
    ]


def _epsilon(report: Report) -> Chart:
    def line(colour: int, variant: Variant) -> Series:
        # Seeds of one variant spend the same, unless one is unfinished: show the longest.
        longest = max(variant.runs, key=lambda run: run.curve[-1][0])
        points = tuple((float(step), epsilon) for step, epsilon in longest.curve)
        return Series(variant.label, points, colour=colour, markers=True)

    lines = [line(i, variant) for i, variant in enumerate(report.variants)]
    if len(lines) > 1 and len({series.points for series in lines}) == 1:
        lines = [replace(lines[0], label="every variant")]
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


def _rule_numbers(report: Report) -> list[Chart]:
    return [
        Chart(
            key=f"rule-{i}",
            title=f"Rule: {_words(name)}",
            x_label="step",
            y_label=_words(name),
            series=_lines(report, _reader("rule", name)),
            note="Part of the rule's public state: computed from released values only.",
        )
        for i, name in enumerate(_names(report, "rule"))
    ]


def _learning_rate(report: Report) -> Chart:
    series = _lines(report, lambda row: row.get("lr"))
    varies = any(len({y for _, y in line.points}) > 1 for line in series)
    return Chart(
        key="lr",
        title="Learning rate",
        x_label="step",
        y_label="learning rate",
        series=series if varies else (),
        from_zero=True,
    )


# -------------------------------------------------------------------- values of private rows


def _not_private(report: Report) -> list[Chart]:
    loss = _chart(report, "training_loss", "Training loss")
    clipped = _chart(report, "clip_fraction", "Share of rows that are scaled down")
    return [loss, clipped, *_norm_quantiles(report), *_norm_tails(report)]


def _chart(report: Report, name: str, title: str) -> Chart:
    return Chart(
        key=name.replace("_", "-"),
        title=title,
        x_label="step",
        y_label=_words(name),
        series=_lines(report, _reader("not_private", name)),
        from_zero=name == "clip_fraction",
        note=NOT_PRIVATE,
        not_private=True,
    )


def _norm_quantiles(report: Report) -> list[Chart]:
    """Per variant: quantiles of per-row gradient norms along the first of its runs."""
    charts = []
    for i, variant in enumerate(report.variants):
        run = variant.runs[0]
        rows = [row for row in run.rows if row.get("not_private", {}).get("norm_quantiles")]
        names = list(dict.fromkeys(q for row in rows for q in row["not_private"]["norm_quantiles"]))
        series = tuple(
            Series(
                "largest" if float(q) == 1 else f"{100 * float(q):g} %",
                thin(
                    [
                        (float(row["step"]), row["not_private"]["norm_quantiles"][q])
                        for row in rows
                        if q in row["not_private"]["norm_quantiles"]
                    ]
                ),
                colour=k,
            )
            for k, q in enumerate(names)
        )
        charts.append(
            Chart(
                key=f"norms-{i}",
                title=_titled("Gradient norms of rows", variant, report),
                x_label="step",
                y_label="norm",
                series=series,
                log_y=True,
                note=f"Quantiles over the rows of a step. {NOT_PRIVATE}",
                not_private=True,
            )
        )
    return charts


def _norm_tails(report: Report) -> list[Chart]:
    """Per variant: the share of rows above a norm, early, half-way and late."""
    charts = []
    for i, variant in enumerate(report.variants):
        rows = [r for r in variant.runs[0].rows if r.get("not_private", {}).get("norm_tail")]
        chosen = (
            list({j: rows[j] for j in (0, len(rows) // 2, len(rows) - 1)}.values()) if rows else []
        )
        series = tuple(
            Series(
                f"step {row['step']}",
                tuple((x, share) for x, share in sorted(row["not_private"]["norm_tail"]) if x > 0),
                colour=k,
                markers=True,
            )
            for k, row in enumerate(chosen)
        )
        charts.append(
            Chart(
                key=f"tail-{i}",
                title=_titled("Tail of gradient norms", variant, report),
                x_label="norm",
                y_label="share of rows at or above",
                series=series,
                log_x=True,
                log_y=True,
                note=f"A straight line down is a power law: a heavy tail. {NOT_PRIVATE}",
                not_private=True,
            )
        )
    return charts


def _titled(title: str, variant: Variant, report: Report) -> str:
    return title if len(report.variants) == 1 else f"{title}: {variant.label}"


def _words(name: str) -> str:
    return name.replace("_", " ")
