"""Means with their intervals, one under the other."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from winsor.charts.axes import axis
from winsor.charts.templates import RIGHT, WIDTH, rendered

ROW, TOP, LEFT, BELOW = 52, 8, 24, 50
LONGEST = 30


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
        (bar.colour, at(bar.mean - half), at(bar.mean), at(bar.mean + half), *_words(bar))
        for bar, half in pairs
    ]
    ticks = [(at(tick), label) for tick, label in zip(scale.ticks, scale.labels(), strict=True)]
    height = TOP + ROW * len(bars) + BELOW
    sizes = {"row": ROW, "top": TOP, "left": LEFT, "below": BELOW, "height": height}
    words = ", ".join([title, *(": ".join(_words(bar)) for bar in bars)])
    return rendered("intervals.svg", title=title, words=words, ticks=ticks, bars=drawn, **sizes)


def _words(bar: IntervalBar) -> tuple[str, str]:
    """Its name and its value, as they stand above it."""
    value = f"{bar.mean:.4g}" if bar.half is None else f"{bar.mean:.4g} ± {bar.half:.2g}"
    return _short(bar.label), value


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
