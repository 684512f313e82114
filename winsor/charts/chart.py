"""Charts as SVG; `chart.js` makes them interactive.

They are drawn here, so that they print, need no library and no network, and can be tested. The
script only adds the cross-hair, the values under it, and switching lines on and off. Colours are
CSS variables, so that light, dark and paper each have their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from winsor.charts.axes import Axis, axis, axis_between
from winsor.charts.series import Series
from winsor.charts.templates import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    LETTER,
    RIGHT,
    TOP,
    WIDTH,
    rendered,
)

LABEL_LEVELS, LABEL_HEIGHT = 4, 14
"""Labels of neighbouring marks are staggered over so many heights."""
FAR_RIGHT = 0.75
"""Labels of marks further right than this share of the axis stand to the left of their line."""


@dataclass(frozen=True)
class Mark:
    """A vertical line with its label."""

    x: float
    label: str


@dataclass(frozen=True)
class Bars:
    """A histogram: one more edge than heights."""

    edges: tuple[float, ...]
    heights: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    """What to draw. ``key`` names it in a page; ``not_private`` charts carry a warning."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...] = ()
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False
    note: str = ""
    not_private: bool = False
    bars: Bars | None = None
    marks: tuple[Mark, ...] = ()
    y_range: tuple[float, float] | None = None
    """Instead of the range of the data; what lies outside is cut off."""

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to draw."""
        return self.bars is None and not any(series.points for series in self.series)

    def axes(self) -> tuple[Axis, Axis]:
        """The axes of x and y, which show all data."""
        xs = [x for s in self.series for x, _ in s.points] + [mark.x for mark in self.marks]
        ys = [y for s in self.series for _, y in s.points]
        ys += [y for s in self.series for _, low, high in s.band for y in (low, high)]
        if self.bars is not None:
            xs += self.bars.edges
            ys += self.bars.heights
        y_axis = axis(ys, self.log_y, self.from_zero)
        if self.y_range is not None:
            y_axis = axis_between(*self.y_range, self.log_y)
        return axis(xs, self.log_x), y_axis

    def data(self) -> dict[str, Any]:
        """Points in pixels and as text, for the script."""
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
                        for x, y in sorted(s.points)
                    ],
                }
                for s in self.series
            ],
        }

    def words(self) -> str:
        """The chart as a sentence for screen readers: where each line starts and ends."""
        lines = [
            f"{s.label}: from {s.points[0][1]:.4g} at {s.points[0][0]:.4g} "
            f"to {s.points[-1][1]:.4g} at {s.points[-1][0]:.4g}"
            for s in self.series
            if s.points
        ]
        over = f"{self.title}: {self.y_label} over {self.x_label}"
        return ". ".join([over, *lines]) + "."

    def svg(self) -> Markup:
        """The chart as an SVG element of a page."""
        return rendered("chart.svg", chart=self)

    def drawing(self) -> Markup:
        """Everything inside the SVG's frame."""
        x_axis, y_axis = self.axes()
        return rendered(
            "drawing.svg",
            chart=self,
            x_ticks=[(px(x_axis, x), label) for x, label in _ticks(x_axis)],
            y_ticks=[(py(y_axis, y), label) for y, label in _ticks(y_axis)],
            bars=self._bars(x_axis, y_axis),
            lines=[_line(series, x_axis, y_axis) for series in self.series],
            marks=[_mark(mark, i, x_axis) for i, mark in enumerate(self.marks)],
        )

    def _bars(self, x_axis: Axis, y_axis: Axis) -> list[tuple[float, float, float]]:
        """(left, right, top) of each."""
        if self.bars is None:
            return []
        edges = [px(x_axis, edge) for edge in self.bars.edges]
        tops = [py(y_axis, height) for height in self.bars.heights]
        return list(zip(edges[:-1], edges[1:], tops, strict=True))


def px(x_axis: Axis, x: float) -> float:
    """Pixels from the left."""
    return LEFT + x_axis.at(x) * (WIDTH - LEFT - RIGHT)


def py(y_axis: Axis, y: float) -> float:
    """Pixels from the top."""
    return HEIGHT - BOTTOM - y_axis.at(y) * (HEIGHT - TOP - BOTTOM)


def _ticks(scale: Axis) -> list[tuple[float, str]]:
    return list(zip(scale.ticks, scale.labels(), strict=True))


def _line(
    series: Series, x_axis: Axis, y_axis: Axis
) -> tuple[Series, str, str, list[tuple[float, float]]]:
    """Turn a series into SVG points of its band and line, and the places of its dots."""
    places = [(px(x_axis, x), py(y_axis, y)) for x, y in series.points]
    upper = [(px(x_axis, x), py(y_axis, high)) for x, _, high in series.band]
    lower = [(px(x_axis, x), py(y_axis, low)) for x, low, _ in series.band]
    around = upper + lower[::-1] if len(series.band) > 1 else []
    return series, _points(around), _points(places), places


def _points(places: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _mark(mark: Mark, i: int, x_axis: Axis) -> tuple[float, float, float, str, str]:
    """x of the line; place, anchor and text of its label.

    Neighbouring labels stand at different heights, and on the side where there is room.
    """
    x = px(x_axis, mark.x)
    y = TOP + 11 + LABEL_HEIGHT * (i % LABEL_LEVELS)
    if x_axis.at(mark.x) > FAR_RIGHT or x + LETTER * len(mark.label) > WIDTH:
        return x, x - 4, y, "end", mark.label
    return x, x + 4, y, "start", mark.label
