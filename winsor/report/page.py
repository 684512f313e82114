"""The report as one HTML page that needs nothing else: no network, no library.

Text reaches the page through a template engine that escapes every value. A content security policy
is the second lock: scripts and styles run only if their hash is the one of ours.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import winsor
from winsor.report.charts import Estimate, intervals_svg
from winsor.report.collect import Report, RunRecord, Variant
from winsor.report.figures import figures
from winsor.runs import toml
from winsor.runs.rounding import rounded_up

HERE = Path(__file__).parent
FORMAT = 1


def render(report: Report) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["up"] = rounded_up
    environment.filters["number"] = lambda value: f"{value:.4g}"
    environment.filters["time"] = shown_time
    style, script = _asset("page.css"), _asset("charts.js")
    charts = figures(report)
    ranked = report.ranked()
    estimates = []
    if len(ranked) > 1:
        estimates = [_estimate(report, variant) for variant in ranked]
    return environment.get_template("page.html").render(
        report=report,
        first=report.runs[0],
        charts=charts,
        warnings=list(dict.fromkeys(w for run in report.runs for w in run.statement.warnings)),
        chart_data=[chart.data() for chart in charts],
        ranking=intervals_svg(report.main_metric, estimates) if estimates else None,
        metric_names=list(dict.fromkeys(n for v in report.variants for n in v.metrics)),
        configs={str(run.path): toml.dump(run.config.to_table()) for run in report.runs},
        commands={str(run.path): reproduction(run) for run in report.runs},
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        version=winsor.__version__,
        time=_now(),
    )


def _estimate(report: Report, variant: Variant) -> Estimate:
    found = variant.metrics[report.main_metric]
    return Estimate(variant.label, found.mean, found.half, report.variants.index(variant))


def to_json(report: Report) -> dict[str, Any]:
    """The same for machines."""
    return {
        "winsor_report": FORMAT,
        "winsor": winsor.__version__,
        "time": _now(),
        "title": report.title,
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
    """How to run it again."""
    config = shlex.quote(str(run.path / "config.toml"))
    return f"winsor train {config} --run {shlex.quote(str(run.path) + '-again')}"


def shown_time(seconds: float) -> str:
    """
    >>> shown_time(12.3), shown_time(754.0), shown_time(7300.0)
    ('12 s', '12 min 34 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Only our own style and script; nothing is loaded, nothing is sent."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
