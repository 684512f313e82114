"""Charts as SVG, drawn here and brought to life by `charts.js`.

Drawn on the server side, so that they print, need no library and no network, and can be tested. The
script only adds the cross-hair, the values under it, and switching lines on and off. Colours are
CSS variables, so that light, dark and paper each have their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from winsor.report.axes import Axis, axis
from winsor.report.series import Series

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 44
COLOURS = 8


@dataclass(frozen=True)
class Chart:
    """What to draw. ``not_private`` charts carry a warning."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False
    note: str = ""
    not_private: bool = False

    @property
    def empty(self) -> bool:
        return not any(series.points for series in self.series)

    def axes(self) -> tuple[Axis, Axis]:
        xs = [x for s in self.series for x, _ in s.points]
        ys = [y for s in self.series for _, y in s.points]
        ys += [y for s in self.series for _, low, high in s.band for y in (low, high)]
        return axis(xs, self.log_x), axis(ys, self.log_y, self.from_zero)

    def data(self) -> dict[str, Any]:
        """What the script needs: points in pixels and in words."""
        x_axis, y_axis = self.axes()
        return {
            "key": self.key,
            "x": self.x_label,
            "lines": [
                {
                    "label": s.label,
                    "colour": s.colour % COLOURS,
                    "points": [
                        [round(px(x_axis, x), 1), round(py(y_axis, y), 1), f"{x:.5g}", f"{y:.5g}"]
                        for x, y in s.points
                    ],
                }
                for s in self.series
            ],
        }

    def svg(self) -> Markup:
        x_axis, y_axis = self.axes()
        body = Markup("").join([*_frame(self, x_axis, y_axis), *_lines(self, x_axis, y_axis)])
        return Markup(
            '<svg viewBox="0 0 {w} {h}" role="img" aria-label="{title}" class="chart" '
            'data-chart="{key}">{body}'
            '<line class="cross" y1="{top}" y2="{bottom}" hidden=""></line></svg>'
        ).format(
            w=WIDTH,
            h=HEIGHT,
            title=self.title,
            key=self.key,
            body=body,
            top=TOP,
            bottom=HEIGHT - BOTTOM,
        )


def px(x_axis: Axis, x: float) -> float:
    return LEFT + x_axis.at(x) * (WIDTH - LEFT - RIGHT)


def py(y_axis: Axis, y: float) -> float:
    return HEIGHT - BOTTOM - y_axis.at(y) * (HEIGHT - TOP - BOTTOM)


def _frame(chart: Chart, x_axis: Axis, y_axis: Axis) -> list[Markup]:
    """Grid, ticks and names of the axes."""
    parts = []
    for value, label in zip(y_axis.ticks, y_axis.labels(), strict=True):
        y = py(y_axis, value)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 7, y + 4, label)
        )
    for value, label in zip(x_axis.ticks, x_axis.labels(), strict=True):
        x = px(x_axis, value)
        parts.append(
            Markup(
                '<line class="grid faint" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>'
                '<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
            ).format(x, x, TOP, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 16, label)
        )
    middle = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(
        Markup(
            '<text class="name" x="{}" y="{}" text-anchor="middle">{}</text>'
            '<text class="name" transform="translate(13 {}) rotate(-90)" text-anchor="middle">{}'
            "</text>"
        ).format((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, chart.x_label, middle, chart.y_label)
    )
    return parts


def _lines(chart: Chart, x_axis: Axis, y_axis: Axis) -> list[Markup]:
    parts = []
    for i, series in enumerate(chart.series):
        colour = f"c{series.colour % COLOURS}"
        inside = [_band(series, x_axis, y_axis), _polyline(series, x_axis, y_axis)]
        parts.append(
            Markup('<g class="line {}" data-line="{}">{}</g>').format(
                colour, i, Markup("").join(inside)
            )
        )
    return parts


def _band(series: Series, x_axis: Axis, y_axis: Axis) -> Markup:
    if len(series.band) < 2:
        return Markup("")
    upper = [f"{px(x_axis, x):.1f},{py(y_axis, high):.1f}" for x, _, high in series.band]
    lower = [f"{px(x_axis, x):.1f},{py(y_axis, low):.1f}" for x, low, _ in series.band[::-1]]
    return Markup('<polygon class="band" points="{}"/>').format(" ".join(upper + lower))


def _polyline(series: Series, x_axis: Axis, y_axis: Axis) -> Markup:
    places = [(px(x_axis, x), py(y_axis, y)) for x, y in series.points]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashed = Markup(' class="dashed"') if series.dashed else Markup("")
    line = Markup('<polyline points="{}"{}/>').format(points, dashed)
    if series.markers or len(places) == 1:
        line += Markup("").join(
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3"/>').format(x, y) for x, y in places
        )
    return line


@dataclass(frozen=True)
class Estimate:
    """A mean and half the width of its interval, for `intervals_svg`."""

    label: str
    mean: float
    half: float | None
    colour: int


def intervals_svg(title: str, estimates: list[Estimate]) -> Markup:
    """Means as dots with their intervals as bars, one under the other."""
    row, top, left = 30, 10, 170
    height = top + row * len(estimates) + 42
    ends = [e.mean + s * (e.half or 0.0) for e in estimates for s in (-1, 1)]
    scale = axis(ends)

    def at(value: float) -> float:
        return left + scale.at(value) * (WIDTH - left - RIGHT)

    parts = [
        Markup(
            '<line class="grid faint" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
            '<text class="tick" x="{x:.1f}" y="{below}" text-anchor="middle">{label}</text>'
        ).format(x=at(v), top=top, bottom=height - 42, below=height - 26, label=label)
        for v, label in zip(scale.ticks, scale.labels(), strict=True)
    ]
    for i, estimate in enumerate(estimates):
        y, half = top + row * i + row / 2, estimate.half or 0.0
        parts.append(
            Markup(
                '<g class="line c{c}"><line class="whisker" x1="{a:.1f}" x2="{b:.1f}" y1="{y}" '
                'y2="{y}"/><circle cx="{m:.1f}" cy="{y}" r="4.5"/></g>'
                '<text class="tick" x="{left}" y="{base}" text-anchor="end">{label}</text>'
            ).format(
                c=estimate.colour % COLOURS,
                a=at(estimate.mean - half),
                b=at(estimate.mean + half),
                m=at(estimate.mean),
                y=y,
                left=left - 10,
                base=y + 4,
                label=_short(estimate.label),
            )
        )
    name = Markup('<text class="name" x="{}" y="{}" text-anchor="middle">{}</text>').format(
        (left + WIDTH - RIGHT) / 2, height - 6, title
    )
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="chart">{}</svg>'
    ).format(WIDTH, height, title, Markup("").join([*parts, name]))


def _short(label: str, most: int = 24) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
