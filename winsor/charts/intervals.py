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
    """A mean and half the width of its interval, or its ends where they are not alike."""

    label: str
    mean: float
    half: float | None
    colour: int
    between: tuple[float, float] | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval; the mean itself without one."""
        half = self.half or 0.0
        return self.between or (self.mean - half, self.mean + half)


def intervals_svg(title: str, bars: list[IntervalBar]) -> Markup:
    """Draw means as dots, one under the other, with their intervals as bars."""
    scale = axis([end for bar in bars for end in bar.ends])

    def at(value: float) -> float:
        return LEFT + scale.at(value) * (WIDTH - LEFT - RIGHT)

    drawn = [
        (bar.colour, at(bar.ends[0]), at(bar.mean), at(bar.ends[1]), *_words(bar)) for bar in bars
    ]
    ticks = [(at(tick), label) for tick, label in zip(scale.ticks, scale.labels(), strict=True)]
    height = TOP + ROW * len(bars) + BELOW
    sizes = {"row": ROW, "top": TOP, "left": LEFT, "below": BELOW, "height": height}
    words = ", ".join([title, *(": ".join(_words(bar)) for bar in bars)])
    return rendered("intervals.svg", title=title, words=words, ticks=ticks, bars=drawn, **sizes)


def _words(bar: IntervalBar) -> tuple[str, str]:
    """Name and value of a bar, as they stand above it."""
    value = _number(bar.mean)
    if bar.between is not None:
        value = f"{value} ({_number(bar.between[0])} to {_number(bar.between[1])})"
    elif bar.half is not None:
        value = f"{value} ± {bar.half:.2g}"
    return _short(bar.label), value


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
