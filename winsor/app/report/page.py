"""The report as one HTML page that needs nothing else: no network, no library."""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path
from typing import Any

import winsor
from winsor.app.report.collect import Report, RunRecord, Variant
from winsor.app.report.figures import figures
from winsor.app.report.opening import SHARES, headline, picture
from winsor.app.runs.summary import rounded_up, share_interval
from winsor.charts.files import render_page
from winsor.charts.intervals import IntervalBar, intervals_svg

HERE = Path(__file__).parent
FORMAT = 1


def render(report: Report) -> str:
    """Render the whole page."""
    drawn = figures(report)
    first = picture(report, drawn)
    keys = {chart.key for chart in first}
    ranked = report.ranked()
    bars = [_bar(report, variant) for variant in ranked] if len(ranked) > 1 else []
    time = _now()
    return render_page(
        "page.html",
        HERE,
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        report=report,
        headline=headline(report),
        first=report.runs[0],
        picture=first,
        charts=[chart for chart in drawn if chart.key not in keys],
        drawn=[*first, *(chart for chart in drawn if chart.key not in keys)],
        warnings=list(dict.fromkeys(w for run in report.runs for w in run.statement.warnings)),
        ranked=ranked,
        ranking=intervals_svg(report.main_metric, bars) if bars else None,
        between=_between(report),
        metric_names=list(dict.fromkeys(n for v in report.variants for n in v.metrics)),
        configs=_configurations(report),
        commands={str(run.path): reproduction(run) for run in report.runs},
        check=f"winsor verify {shlex.quote(str(report.runs[0].path))}",
        shown_time=shown_time,
        shown_day=shown_day,
        rounded_up=rounded_up,
        version=winsor.__version__,
        time=time,
        day=shown_day(time),
    )


def _configurations(report: Report) -> dict[str, str]:
    """By path, as TOML; runs that differ in their seed alone say so, which keeps the file short."""
    found = {}
    for variant in report.variants:
        first, *others = variant.runs
        found[str(first.path)] = first.config.to_toml()
        for run in others:
            same = f"# that of {variant.label}, seed {first.config.seed}, with"
            found[str(run.path)] = f"{same}\nseed = {run.config.seed}\n"
    return found


def _between(report: Report) -> dict[str, tuple[float, float]]:
    """The interval of a single run's shares, from the number of its held-out rows."""
    run = report.runs[0]
    rows = run.result["held_out_rows"] if run.result else 0
    if len(report.runs) > 1 or not rows:
        return {}
    return {n: share_interval(v, rows) for n, v in run.held_out.items() if n in SHARES}


def _bar(report: Report, variant: Variant) -> IntervalBar:
    found = variant.metrics[report.main_metric]
    return IntervalBar(variant.label, found.mean, found.half, report.variants.index(variant))


def to_json(report: Report) -> dict[str, Any]:
    """The content of the page as plain values."""
    return {
        "winsor_report": FORMAT,
        "winsor": winsor.__version__,
        "time": _now(),
        "title": report.title,
        "promise": headline(report).promise,
        "together": report.together,
        "variants": [
            {
                "label": variant.label,
                "runs": [str(run.path) for run in variant.runs],
                "metrics": {name: m.to_json() for name, m in variant.metrics.items()},
                "differences": {name: d.to_json() for name, d in variant.differences.items()},
            }
            for variant in report.variants
        ],
        "runs": [_run_json(run) for run in report.runs],
    }


def _run_json(run: RunRecord) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "label": run.label,
        "seed": run.config.seed,
        "finished": run.result is not None,
        "statement": run.statement.to_json(),
        "epsilon_by_step": run.curve,
        "held_out": run.held_out,
        "result": run.result,
        "config": run.config.to_table(),
        "environment": run.sessions,
        "reproduce": reproduction(run),
        "metrics": run.rows,
    }


def reproduction(run: RunRecord) -> str:
    """The command that runs it again."""
    config = shlex.quote(str(run.path / "config.toml"))
    return f"winsor train {config} --run {shlex.quote(str(run.path) + '-again')}"


def shown_time(seconds: float) -> str:
    """Print a duration.

    >>> shown_time(12.3), shown_time(754.0), shown_time(7300.0)
    ('12 s', '12 min 34 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def shown_day(time: str) -> str:
    """Print a time as people write it; text that is not a time stays as it is.

    >>> shown_day("2026-11-16T22:02:46+00:00"), shown_day("long ago")
    ('16 Nov 2026, 22:02 UTC', 'long ago')
    """
    try:
        moment = datetime.datetime.fromisoformat(time)
    except ValueError:
        return time
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC)
    return f"{moment.day} {moment:%b %Y, %H:%M} {moment:%Z}".strip()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
