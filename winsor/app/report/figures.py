"""The charts of a report: those for which the runs hold data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from winsor.app.report.collect import Report, RunRecord, Variant
from winsor.app.report.opening import SHARES, epsilon, with_interval
from winsor.app.runs.config import higher_is_better
from winsor.app.runs.directory import Row
from winsor.charts import Chart, Point, Series, over_seeds, thin

Value = Callable[[Row], float | None]


def figures(report: Report) -> list[Chart]:
    """All charts with something to show, utility and epsilon first."""
    charts = [
        *_held_out(report),
        epsilon(report),
        *_rule_numbers(report),
        _learning_rate(report),
        *(chart for drawer in DRAWERS for chart in _monitored(report, drawer)),
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
    alone = report.runs[0].result if len(report.runs) == 1 else None
    rows = alone["held_out_rows"] if alone else None
    return [
        Chart(
            key=f"held-out-{i}",
            title=f"Held-out {_words(name)}",
            x_label="step",
            y_label=_words(name),
            series=tuple(
                with_interval(line, name, rows)
                for line in _lines(report, _reader("held_out", name))
            ),
            note=(
                f"With the 95 % interval of {rows:,} held-out rows. "
                if rows and name in SHARES
                else ""
            )
            + ("Mean over seeds; the band is their range. " if several else "")
            + ("Higher is better." if higher_is_better(name) else "Lower is better.")
            * (name != "token_accuracy"),
        )
        for i, name in enumerate(names)
    ]


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


# ----------------------------------------------------------------------------- the tails


@dataclass(frozen=True)
class Drawer:
    """A section of the metrics that holds what a monitor saw."""

    name: str
    note: str
    not_private: bool


DRAWERS = (
    Drawer(
        "monitor",
        "Released with noise, within the stated epsilon; the noisier, the fewer the rows.",
        False,
    ),
    Drawer("not_private", "Exact values of private rows (record.monitor = debug).", True),
)
NUMBERS = {  # name in the metrics: title, whether the axis starts at zero
    "training_loss": ("Training loss", False),
    "clip_fraction": ("Share of rows that are scaled down", True),
    "clipping_bias": ("Bound on the bias of clipping", True),
    "noise_to_signal": ("Noise over signal", True),
}


def _monitored(report: Report, drawer: Drawer) -> list[Chart]:
    numbers = [
        Chart(
            key=f"{drawer.name}-{name}".replace("_", "-"),
            title=title,
            x_label="step",
            y_label=_words(name),
            series=_lines(report, _reader(drawer.name, name)),
            from_zero=from_zero,
            note=drawer.note,
            not_private=drawer.not_private,
        )
        for name, (title, from_zero) in NUMBERS.items()
    ]
    norms = [
        chart(i, variant, report, drawer)
        for chart in (_norm_quantiles, _norm_tail)
        for i, variant in enumerate(report.variants)
    ]
    return numbers + norms


def _quantile_rows(variant: Variant, drawer: Drawer) -> list[tuple[int, dict[str, float]]]:
    """(step, quantiles of norms) along the first run of a variant."""
    rows = ((row["step"], row.get(drawer.name, {})) for row in variant.runs[0].rows)
    return [(step, values["quantiles"]) for step, values in rows if "quantiles" in values]


def _norm_quantiles(i: int, variant: Variant, report: Report, drawer: Drawer) -> Chart:
    rows = _quantile_rows(variant, drawer)
    names = list(dict.fromkeys(q for _, quantiles in rows for q in quantiles))
    lines = {q: [(float(step), values[q]) for step, values in rows if q in values] for q in names}
    return Chart(
        key=f"{drawer.name}-norms-{i}".replace("_", "-"),
        title=_titled("Gradient norms of rows", variant, report),
        x_label="step",
        y_label="norm",
        series=tuple(
            Series("largest" if float(q) == 1 else f"{100 * float(q):g} %", thin(line), colour=k)
            for k, (q, line) in enumerate(lines.items())
        ),
        log_y=True,
        note=f"Quantiles over the rows of a step. {drawer.note}",
        not_private=drawer.not_private,
    )


def _norm_tail(i: int, variant: Variant, report: Report, drawer: Drawer) -> Chart:
    """The share of rows above a norm: early, half-way and late."""
    rows = _quantile_rows(variant, drawer)
    chosen = sorted({0, len(rows) // 2, len(rows) - 1}) if rows else []
    return Chart(
        key=f"{drawer.name}-tail-{i}".replace("_", "-"),
        title=_titled("Tail of gradient norms", variant, report),
        x_label="norm",
        y_label="share of rows above",
        series=tuple(
            Series(f"step {rows[j][0]}", _tail(rows[j][1]), colour=k, markers=True)
            for k, j in enumerate(chosen)
        ),
        log_x=True,
        log_y=True,
        note=f"A straight line down is a power law: a heavy tail. {drawer.note}",
        not_private=drawer.not_private,
    )


def _tail(quantiles: dict[str, float]) -> tuple[Point, ...]:
    pairs = ((value, 1 - float(q)) for q, value in quantiles.items())
    return tuple(sorted((norm, above) for norm, above in pairs if norm > 0 and above > 0))


def _titled(title: str, variant: Variant, report: Report) -> str:
    return title if len(report.variants) == 1 else f"{title}: {variant.label}"


def _words(name: str) -> str:
    return name.replace("_", " ")
