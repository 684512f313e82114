"""Charts as files that need nothing else: a drawing (.svg), or a page (.html) with values under
the pointer.

A content security policy is the second lock of a page, after the escaping of its text: scripts and
styles run only if their hash is the one of ours.
"""

from __future__ import annotations

import base64
import hashlib
import textwrap
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from markupsafe import Markup

from winsor.charts.chart import Chart
from winsor.charts.series import Series
from winsor.charts.templates import HEIGHT, LEFT, LETTER, RIGHT, WIDTH, asset, environment, rendered
from winsor.core.contract import ConfigurationError

LINE = 17


def save(chart: Chart, path: str | PathLike[str]) -> Path:
    """Write a chart to ``path``, self-contained: ``.svg`` or ``.html``."""
    target = Path(path)
    if target.suffix not in (".svg", ".html"):
        raise ConfigurationError(f"path must end in .svg or .html. Got {target.name!r} instead.")
    text = drawing(chart) if target.suffix == ".svg" else page(chart)
    target.write_text(text, encoding="utf-8")
    return target


def save_all(drawn: Mapping[str, Chart], folder: Path) -> None:
    """Write each chart as NAME.html and as NAME.svg."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the plots must go to a folder that can be written. Got {str(folder)!r}: {error}."
        ) from error
    for name, chart in drawn.items():
        save(chart, folder / f"{name}.html")
        save(chart, folder / f"{name}.svg")


# ------------------------------------------------------------------------------------------ pages


def page(chart: Chart) -> str:
    """Draw one chart as a page."""
    return render_page("alone.html", chart=chart, charts=[chart])


def render_page(template: str, *folders: Path, style: str = "", **values: Any) -> str:
    """Render a template of ``folders`` with the style and script that its ``charts`` need."""
    style = asset("chart.css") + asset("figure.css") + style
    script = asset("chart.js")
    return (
        environment(*folders)
        .get_template(template)
        .render(
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
            chart_data=[chart.data() for chart in values.get("drawn", values["charts"])],
            **values,
        )
    )


def _policy(style: str, script: str) -> str:
    """Only our own style and script; nothing is loaded, nothing is sent."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


# --------------------------------------------------------------------------------------- drawings


def drawing(chart: Chart) -> Markup:
    """Draw the chart with its title, note and legend as one SVG document."""
    notes = textwrap.wrap(chart.note, 88)
    head = 26 + LINE * len(notes)
    legend = _legend(chart, head + HEIGHT + 12)
    return rendered(
        "alone.svg",
        chart=chart,
        title=f"{chart.title} (NOT PRIVATE)" if chart.not_private else chart.title,
        notes=notes,
        head=head,
        legend=legend,
        height=legend[-1][2] + LINE if legend else head + HEIGHT + 6,
        style=Markup(asset("chart.css")),
        LINE=LINE,
    )


def _legend(chart: Chart, y: float) -> list[tuple[Series, float, float]]:
    """Positions (x, y) of the names of several lines, in as many rows as they need."""
    places, x = [], float(LEFT)
    for series in chart.series if len(chart.series) > 1 else ():
        width = 32 + LETTER * len(series.label)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, y = float(LEFT), y + LINE
        places.append((series, x, y))
        x += width
    return places
