"""`winsor tails RUN`: what the monitor of a run saw, over the steps.

With record.monitor = "private" these are released values, within the run's epsilon. With "debug"
they are exact and NOT PRIVATE, and every output says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from winsor.app.commands.output import print_json
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from winsor.charts import Chart

NUMBERS = ("clip_fraction", "clipping_bias", "effective_batch", "noise_to_signal")
LINES = 12


def show_run(path: Path, plots: Path | None, json: bool) -> None:
    """Print the readings of the run in ``path``, and draw its quantiles if ``plots`` is given."""
    from winsor.app.runs.directory import RunDirectory
    from winsor.app.runs.folder import sense

    RunDirectory(path).refuse_disagreements(leftovers=False)
    with sense(path / "metrics.jsonl"):
        section, rows = readings(RunDirectory(path).metrics(), str(path))
    if plots is not None:
        from winsor.charts import save_all

        with sense(path / "metrics.jsonl"):
            chart = quantile_chart(section, rows)
        save_all({"quantiles": chart}, plots)
    if json:
        print_json({"run": str(path), **_mark(section), "readings": rows})
        return
    with sense(path / "metrics.jsonl"):
        _show(path, section, rows, plots)


def readings(metrics: list[dict[str, Any]], name: str) -> tuple[str, list[dict[str, Any]]]:
    """Which monitor the run had, and one row per reading."""
    for section in ("monitor", "not_private"):
        found = [
            {"step": row["step"], "threshold": row.get("rule", {}).get("threshold"), **row[section]}
            for row in metrics
            if "quantiles" in row.get(section, {})
        ]
        if found:
            return section, found
    raise ConfigurationError(
        f"{name} must be a run with readings of norms. Got none in its metrics. Train with "
        'record.monitor = "private".'
    )


def _mark(section: str) -> dict[str, Any]:
    return {"private": True} if section == "monitor" else {"NOT PRIVATE": True, "private": False}


def _title(section: str) -> str:
    if section == "monitor":
        return "private monitor: released with noise, within the run's epsilon"
    return "NOT PRIVATE: exact values of private rows"


def quantile_chart(section: str, rows: list[dict[str, Any]]) -> Chart:
    """Quantiles of the norms over the steps, and the threshold where the rule moves it."""
    from winsor.charts import Chart, Series
    from winsor.charts.series import points_of

    def line(name: str, values: list[Any], colour: int, dashed: bool = False) -> Series:
        kept = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None and v > 0]
        points = points_of([s for s, _ in kept], [v for _, v in kept])
        return Series(name, points, colour=colour, dashed=dashed)

    steps = [row["step"] for row in rows]
    levels = sorted({level for row in rows for level in row["quantiles"]}, key=float)
    drawn = [
        line(f"{100 * float(q):g} % quantile", [r["quantiles"].get(q) for r in rows], i)
        for i, q in enumerate(reversed(levels))
    ]
    thresholds = [row["threshold"] for row in rows]
    drawn.append(line("threshold", thresholds, len(levels), dashed=True))
    return Chart(
        key="quantiles",
        title="Norms over the run",
        note=_title(section),
        x_label="step",
        y_label="norm",
        series=tuple(found for found in drawn if found.points),
        log_y=True,
        not_private=section == "not_private",
    )


def _show(path: Path, section: str, rows: list[dict[str, Any]], plots: Path | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{escape(path.name)}[/bold]: {_title(section)}")
    levels = sorted(rows[-1]["quantiles"], key=float)
    table = Table("step", *(f"{100 * float(q):g} %" for q in levels), "threshold", box=None)
    numbers = [name for name in NUMBERS if any(name in row for row in rows)]
    for name in numbers:
        table.add_column(name.replace("_", " "))
    stride = -(-len(rows) // LINES)
    for row in rows[::-stride][::-1]:
        values = [*(row["quantiles"].get(q) for q in levels), row["threshold"]]
        values += [row.get(name) for name in numbers]
        cells = ["" if value is None else f"{value:.3g}" for value in values]
        table.add_row(str(row["step"]), *cells)
    console.print(table)
    share = rows[-1].get("clip_fraction")
    if share is not None:
        console.print(_advice(share))
    if plots is not None:
        console.print(f"plots in {plots}")


def _advice(clipped: float) -> str:
    """In words: the balance of `guide.private_quantile` is between 3 and 30 % of rows clipped."""
    from winsor.tails.guide import TARGETS

    low, high = 1 - TARGETS[1], 1 - TARGETS[0]
    if clipped < low:
        return f"Hardly a row is clipped ({clipped:.1%}): a lower threshold costs no bias."
    if clipped > high:
        return (
            f"{clipped:.0%} of the rows are clipped: bias may be large. A higher threshold pays "
            "unless the noise already hides the signal; winsor.tuning.recipes finds the balance."
        )
    return f"{clipped:.0%} of the rows are clipped: about where bias and noise balance."
