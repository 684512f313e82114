"""A heat map as SVG: panels side by side, a number in every cell, darker where it is larger."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from winsor.charts.templates import LEFT, RIGHT, WIDTH, asset, environment

CELL, GAP, LINE, BELOW = 34, 24, 17, 48
PALEST = 0.06
"""Opacity of the smallest number."""


@dataclass(frozen=True)
class HeatMap:
    """``panels`` hold one number for each row and column."""

    title: str
    row_label: str
    column_label: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    panels: dict[str, tuple[tuple[float, ...], ...]]
    note: str = ""

    def words(self) -> str:
        """The drawing for those who hear it: the best cell of each panel."""
        return ". ".join([self.title, *(f"{name}: {self._best(name)}" for name in self.panels)])

    def _best(self, panel: str) -> str:
        value, row, column = max(
            (value, row, column)
            for row, line in zip(self.rows, self.panels[panel], strict=True)
            for column, value in zip(self.columns, line, strict=True)
        )
        return f"largest {value:.1f} at {self.row_label} {row} and {self.column_label} {column}"


def drawn(heat: HeatMap) -> str:
    """The whole picture; all panels have one scale."""
    notes = textwrap.wrap(heat.note, 88)
    top = 26 + LINE * len(notes) + 24
    wide = (WIDTH - LEFT - RIGHT - GAP * (len(heat.panels) - 1)) / len(heat.panels)
    step_x = wide / len(heat.columns)
    values = [value for panel in heat.panels.values() for line in panel for value in line]
    low, high = min(values), max(values)

    def cells(panel: tuple[tuple[float, ...], ...], left: float) -> list[tuple[object, ...]]:
        return [
            (left + step_x * column, top + CELL * row, _share(value, low, high), f"{value:.1f}")
            for row, line in enumerate(panel)
            for column, value in enumerate(line)
        ]

    lefts = [LEFT + (wide + GAP) * place for place in range(len(heat.panels))]
    template = environment(Path(__file__).parent).get_template("heat_map.svg")
    return template.render(
        map=heat, words=heat.words(), notes=notes, step=LINE, top=top, cell=CELL, wide=wide,
        step_x=step_x, height=top + CELL * len(heat.rows) + BELOW,
        style=Markup(asset("chart.css")),
        panels=[
            (name, left, cells(panel, left))
            for (name, panel), left in zip(heat.panels.items(), lefts, strict=True)
        ],
    )  # fmt: skip


def _share(value: float, low: float, high: float) -> float:
    """Opacity of a cell; where all are alike, all are pale."""
    if math.isclose(low, high):
        return PALEST
    return PALEST + (1 - PALEST) * 0.75 * (value - low) / (high - low)
