"""Draw the charts of `charts.py`: interactive with plotly, static PNG with matplotlib (an extra).

import winsor.tails.plots as plots
plots.figure(charts.tail_chart(fitted)).show()
plots.save(charts.tail_chart(fitted), "tail.png")      # or tail.html
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winsor.contract import ConfigurationError
from winsor.tails.charts import Chart, Line

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
RIGHT = 0.75
"""Labels of marks further right than this stand to the left of their line."""

INK, FAINT, BAR = "#1f2933", "#d9dfe5", "#9fc3de"


def save(chart: Chart, path: str | PathLike[str]) -> Path:
    """Write a chart to ``path``: ``.html`` (self-contained, plotly) or ``.png`` (matplotlib)."""
    target = Path(path)
    if target.suffix == ".html":
        figure(chart).write_html(target, include_plotlyjs=True)
    elif target.suffix == ".png":
        _png(chart, target)
    else:
        raise ConfigurationError(f"path must end in .html or .png. Got {target.name!r} instead.")
    return target


def save_all(drawn: Mapping[str, Chart], folder: Path) -> None:
    """Write each chart as NAME.html, and as NAME.png if matplotlib is installed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the plots must go to a folder that can be written. Got {str(folder)!r}: {error}."
        ) from error
    for name, chart in drawn.items():
        save(chart, folder / f"{name}.html")
        if find_spec("matplotlib") is not None:
            save(chart, folder / f"{name}.png")


def _colours(chart: Chart) -> dict[str, str]:
    return {line.name: COLOURS[i % len(COLOURS)] for i, line in enumerate(chart.lines)}


def _label_levels(chart: Chart, levels: int = 4) -> list[int]:
    """Stagger the labels of neighbouring marks over a few heights, from left to right."""
    return [i % levels for i in range(len(chart.marks))]


# -------------------------------------------------------------------------------------- plotly


def figure(chart: Chart) -> go.Figure:
    """The chart as a plotly figure."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    if chart.bars is not None:
        edges, heights = chart.bars
        drawn.add_bar(
            x=(edges[1:] + edges[:-1]) / 2,  # widths are in the units of x on log axes, too
            y=heights,
            width=np.diff(edges),
            marker={"color": BAR, "line": {"color": "white", "width": 0.5}},
            hovertemplate="%{x:.3g}: %{y:.2f} %<extra></extra>",
            showlegend=False,
        )
    colours = _colours(chart)
    for line in chart.lines:
        _add_line(drawn, line, colours[line.name])
    for mark, level in zip(chart.marks, _label_levels(chart), strict=True):
        drawn.add_vline(x=mark.x, line={"color": INK, "width": 1, "dash": "dot"})
        drawn.add_annotation(
            x=np.log10(mark.x) if chart.log_x else mark.x,
            y=1 - 0.055 * level,
            yref="paper",
            text=mark.label,
            showarrow=False,
            xanchor="right" if chart.place(mark.x) > RIGHT else "left",
            xshift=-4 if chart.place(mark.x) > RIGHT else 4,
            font={"size": 11, "color": INK},
            bgcolor="rgba(255,255,255,0.8)",
        )
    _style(drawn, chart)
    return drawn


def _add_line(drawn: go.Figure, line: Line, colour: str) -> None:
    if line.low is not None and line.high is not None:
        drawn.add_scatter(
            x=np.concatenate([line.x, line.x[::-1]]),
            y=np.concatenate([line.high, line.low[::-1]]),
            fill="toself",
            fillcolor=colour,
            opacity=0.15,
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
        )
    drawn.add_scatter(
        x=line.x,
        y=line.y,
        name=line.name,
        mode="markers" if line.dots else "lines",
        marker={"color": colour, "size": 5, "opacity": 0.7},
        line={"color": colour, "width": 2.5, "dash": "dash" if line.dashed else "solid"},
        hovertemplate="%{x:.4g}, %{y:.4g}<extra>" + line.name + "</extra>",
    )


def _style(drawn: go.Figure, chart: Chart) -> None:
    axis = {"gridcolor": FAINT, "zeroline": False, "linecolor": INK, "ticks": "outside"}
    drawn.update_layout(
        title={"text": f"<b>{chart.title}</b><br><sup>{chart.subtitle}</sup>", "x": 0.02},
        template="plotly_white",
        font={"color": INK},
        margin={"l": 70, "r": 30, "t": 80, "b": 60},
        legend={"orientation": "h", "y": -0.18},
        bargap=0,
    )
    drawn.update_xaxes(title=chart.x_label, type="log" if chart.log_x else "linear", **axis)
    drawn.update_yaxes(title=chart.y_label, type="log" if chart.log_y else "linear", **axis)
    if chart.y_range is not None:
        low, high = chart.y_range
        drawn.update_yaxes(range=[np.log10(low), np.log10(high)] if chart.log_y else [low, high])


# ---------------------------------------------------------------------------------- matplotlib


def _png(chart: Chart, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            'PNG files need matplotlib: install it with pip install "winsor[plots]", or save .html.'
        ) from error
    drawn = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    if chart.bars is not None:
        edges, heights = chart.bars
        axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=BAR, edgecolor="white")
    colours = _colours(chart)
    for line in chart.lines:
        _draw_line(axes, line, colours[line.name])
    _decorate(axes, chart)
    for mark, level in zip(chart.marks, _label_levels(chart), strict=True):
        axes.axvline(mark.x, color=INK, linewidth=1, linestyle=":")
        axes.annotate(
            mark.label,
            (mark.x, 0.97 - 0.06 * level),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if chart.place(mark.x) > RIGHT else 4, 0),
            ha="right" if chart.place(mark.x) > RIGHT else "left",
            textcoords="offset points",
            fontsize=8,
            color=INK,
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},
        )
    drawn.savefig(path)


def _draw_line(axes: Any, line: Line, colour: str) -> None:
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if line.dots:
        axes.scatter(line.x, line.y, s=10, color=colour, alpha=0.7, label=line.name, linewidths=0)
    else:
        style = "--" if line.dashed else "-"
        axes.plot(line.x, line.y, style, color=colour, linewidth=2, label=line.name)


def _decorate(axes: Any, chart: Chart) -> None:
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    elif not chart.log_y:
        axes.set_ylim(bottom=0)
        axes.margins(y=0.12)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_title(f"{chart.title}\n", loc="left", fontweight="bold", color=INK)
    axes.text(0, 1.02, chart.subtitle, transform=axes.transAxes, fontsize=9, color="#52606d")
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if chart.lines:
        axes.legend(frameon=False, fontsize=9, loc="best")
