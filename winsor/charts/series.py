"""Lines to draw: points, thinned so that any run fits on a page, and means over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
Band = tuple[float, float, float]
MOST_POINTS = 1000


@dataclass(frozen=True)
class Series:
    """One line of a chart; ``band`` holds (x, lowest, highest). ``dots`` draws points only."""

    label: str
    points: tuple[Point, ...]
    band: tuple[Band, ...] = ()
    colour: int = 0
    dashed: bool = False
    markers: bool = False
    dots: bool = False


def points_of(x: Iterable[float], y: Iterable[float]) -> tuple[Point, ...]:
    """Pair the values of two columns; pairs that are not finite are left out.

    >>> points_of([1, 2], [3.0, float("nan")])
    ((1.0, 3.0),)
    """
    pairs = ((float(a), float(b)) for a, b in zip(x, y, strict=True))
    return tuple(pair for pair in pairs if all(map(math.isfinite, pair)))


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Keep at most ``most`` points with the same outline: first, last, and the extremes between.

    >>> thin([(float(x), float(x % 7)) for x in range(10_000)], most=100)[-1]
    (9999.0, 3.0)
    """
    n = len(points)
    if n <= most:
        return tuple(points)
    buckets = max(1, (most - 2) // 2)
    kept = [0]
    for b in range(buckets):
        inside = range(1 + b * (n - 2) // buckets, 1 + (b + 1) * (n - 2) // buckets)
        low = min(inside, key=lambda i: points[i][1])
        high = max(inside, key=lambda i: points[i][1])
        kept += sorted({low, high})
    return tuple(points[i] for i in [*kept, n - 1])


def over_seeds(label: str, runs: Sequence[Sequence[Point]], colour: int) -> Series:
    """Draw the mean of several runs where all have a value, with the range as a band."""
    runs = [run for run in runs if run]
    if not runs:
        return Series(label, (), colour=colour)
    if len(runs) == 1:
        return Series(label, thin(runs[0]), colour=colour)
    tables = [dict(run) for run in runs]
    common = sorted(set.intersection(*(set(table) for table in tables)))
    values = [(x, [table[x] for table in tables]) for x in common]
    mean = thin([(x, sum(ys) / len(ys)) for x, ys in values])
    shown = {x for x, _ in mean}
    band = tuple((x, min(ys), max(ys)) for x, ys in values if x in shown)
    return Series(label, mean, band, colour)
