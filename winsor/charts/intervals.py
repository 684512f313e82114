"""Means with their intervals, one under the other."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from winsor.charts.axes import axis
from winsor.charts.templates import RIGHT, WIDTH, rendered

ROW, TOP, LEFT, BELOW = 30, 10, 170, 42
LONGEST = 24


@dataclass(frozen=True)
class IntervalBar:
    """A mean and half the width of its interval."""

    label: str
    mean: float
    half: float | None
    colour: int


def intervals_svg(title: str, bars: list[IntervalBar]) -> Markup:
    """Means as dots with their intervals as bars."""
    halves = [bar.half or 0.0 for bar in bars]
    pairs = list(zip(bars, halves, strict=True))
    scale = axis([bar.mean + sign * half for bar, half in pairs for sign in (-1, 1)])

    def at(value: float) -> float:
        return LEFT + scale.at(value) * (WIDTH - LEFT - RIGHT)

    drawn = [
        (bar.colour, at(bar.mean - half), at(bar.mean), at(bar.mean + half), _short(bar.label))
        for bar, half in pairs
    ]
    ticks = [(at(tick), label) for tick, label in zip(scale.ticks, scale.labels(), strict=True)]
    height = TOP + ROW * len(bars) + BELOW
    sizes = {"row": ROW, "top": TOP, "left": LEFT, "below": BELOW, "height": height}
    return rendered("intervals.svg", title=title, ticks=ticks, bars=drawn, **sizes)


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
