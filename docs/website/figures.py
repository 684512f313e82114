"""Figures of the benchmarks, drawn from the results that their scripts saved."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from website.contents import ROOT
from winsor.charts import Chart, Series
from winsor.charts.intervals import IntervalBar, intervals_svg

RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and what was measured."""

    title: str
    note: str
    drawing: Markup


def figures() -> list[Figure]:
    """Those whose results are there."""
    makers = {
        "rules_fashion_mnist": rules_at_one_epsilon,
        "step_time": step_time,
        "means_accuracy": error_of_means,
    }
    found = []
    for name, make in makers.items():
        kept = [RESULTS / f"{name}.json", *ROOT.glob(f"experiments/*/results/{name}.json")]
        for path in filter(Path.exists, kept):
            found.append(make(json.loads(path.read_text(encoding="utf-8"))))
    return found


def rules_at_one_epsilon(saved: dict[str, Any]) -> Figure:
    """Accuracy of every rule at the same certified epsilon."""
    table, settings = saved["table"], saved["settings"]
    ranked = sorted(table.items(), key=lambda item: -item[1]["mean"])
    bars = [IntervalBar(name, row["mean"], row["sd"], i) for i, (name, row) in enumerate(ranked)]
    return Figure(
        f"Rules at epsilon {settings['epsilon']:g}, Fashion-MNIST",
        f"Accuracy in per cent, mean and standard deviation of {settings['seeds']} seeds, "
        f"{settings['final_epochs']} epochs (rules_fashion_mnist.py).",
        intervals_svg("accuracy, %", bars),
    )


def step_time(saved: dict[str, Any]) -> Figure:
    """A whole private step over a plain one."""
    model = "GPT 4x256"
    timed = (r for r in saved["rows"] if r["model"] == model and "ratio" in r)  # some are refused
    rows = sorted(timed, key=lambda r: r["ratio"])
    bars = [IntervalBar(row["framework"], row["ratio"], None, i) for i, row in enumerate(rows)]
    return Figure(
        "What a private step costs",
        f"Ratio to a plain step of the same batch, {model}, medians (step_time.py). 1 is as fast "
        "as not being private.",
        intervals_svg("ratio to plain SGD", bars),
    )


def error_of_means(saved: dict[str, Any]) -> Figure:
    """Errors fall with the rows as the theorems say, also under heavy tails."""
    rates = [row for row in saved["rates"] if row["data"] == "student_t"][:6]
    lines = tuple(
        Series(
            f"{row['estimator']} (slope {row['slope']:.2f})",
            tuple((float(n), float(e)) for n, e in zip(row["sizes"], row["rmse"], strict=True)),
            colour=i,
            markers=True,
        )
        for i, row in enumerate(rates)
    )
    chart = Chart(
        key="means",
        title="Error of private means",
        x_label="rows",
        y_label="root mean square error",
        series=lines,
        log_x=True,
        log_y=True,
    )
    legend = "; ".join(line.label for line in lines)
    return Figure(
        chart.title,
        f"Student's t rows, epsilon {rates[0]['epsilon']:g} (means_accuracy.py). From the first "
        f"colour on: {legend}.",
        chart.svg(),
    )
