"""What a fit looks at before it descends, decided on public values alone: n, the budget, the number
of columns, and which bounds were given.

    three rounds  of histograms of all columns, and of y: inside bounds a column may be anywhere.
                  They begin with a public grid that ends with the bounds, so that what is found
                  is what would be found without them, and nothing beyond
    one round     rows too few for that at its usual share, and all columns have bounds: these save
                  the search for where columns are. Cells between the bounds, a third of the noise
    blunt         no bounds: a blunt look at what has none, and y
    (`winsor/tables/ranges/coarse.py`);
                  bounds that were given are used as they are
    a few         rows too few even for that, and slopes of all columns would be noise: a classifier
                  takes a blunt look at as many of them as it affords, spread over the table for
                  neighbours are often alike, and leaves the others alone
    y alone       a regression, or rows too few even for one column: bounds are used as they are,
                  columns without are taken for standardised ones; with hardly any rows, y is not
                  looked for where ``target_range`` says enough. Where slopes would be noise, a
                  regression learns its level alone; columns that are taken for standardised ones
                  get no slopes unless they would stand out twice

Columns that are all in (0, 1) or (-1, 1) are taken for scaled ones, and not looked at. Beside
others they are: a proportion of a few per cent, taken as it is, is lost in the noise of X'X, and
indicators are recognised in the first round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.tables.linear.bounded import BoundedTask
from winsor.tables.ranges.bounds import scaled
from winsor.tables.ranges.coarse import (
    STANDARD,
    Coarse,
    affordable,
    enough,
    share_alone,
    share_of_one_round,
    share_of_ranges,
)
from winsor.tables.ranges.grid import cells_between, grid_between
from winsor.tables.ranges.zoom import Zoom

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """``zoom`` is the plan of the histograms, with this ``share`` of the budget."""

    zoom: Zoom | None
    share: float
    unknown: NDArray[np.intp]
    """Columns that are looked at."""
    target: bool
    """Whether y is."""
    bounds: Array
    """Of all columns, with what those are taken for that nobody looks at."""
    used: NDArray[np.bool_]
    """Columns that get a slope."""

    def start(self, target_range: tuple[float, float] | None) -> list[Array | None]:
        """Public edges of the first round: of the columns, then of y in the units of its range."""
        edges = [self._between(*pair) for pair in self.bounds[self.unknown].tolist()]
        if self.target:
            edges.append(None)
            if target_range is not None:
                low, high = map(float, target_range)
                own = np.asarray(self._between(low, high))
                edges[-1] = (2 * own - low - high) / (high - low)
        return edges

    def _between(self, low: float, high: float) -> Array | None:
        if math.isnan(low) or self.zoom is None:
            return None
        return (cells_between if self.zoom.rounds == 1 else grid_between)(low, high)


def look_of(task: BoundedTask, regression: bool, shares: tuple[float, float], mu: float) -> Look:
    """The look for ``task``; ``shares`` are its usual one and the largest that may be spent. ``mu``
    is that of the one release that would spend the budget."""
    n, bounds, (least, most) = task.n, task.bounds, shares
    unknown, all_of_them = np.arange(len(bounds)), np.ones(len(bounds), dtype=bool)
    if scaled(bounds).all():
        unknown = unknown[:0]
    share = share_of_ranges(least, n, len(unknown) + 1, mu)
    columns, known = len(unknown) + regression, not np.isnan(bounds).any()
    visible = visibility(task.design.size, n, mu)
    if known and len(unknown) and share != least and (visible >= 1 or not regression):
        once = share_of_one_round(least, n, columns, mu)
        if once is not None:
            one = Zoom(columns, rounds=1, indicators=True)
            return Look(one, once, unknown, regression, bounds, all_of_them)
    elif share is not None:
        zoom = Zoom(columns, indicators=True) if columns else None
        return Look(zoom, share, unknown, regression, bounds, all_of_them)
    unknown = np.flatnonzero(np.isnan(bounds).any(axis=1))
    columns = len(unknown) + regression
    if len(unknown) and enough(n, columns, 3 * least, mu):
        return Look(Coarse(columns), 3 * least, unknown, regression, bounds, all_of_them)
    nothing, used = np.empty(0, dtype=np.intp), all_of_them
    if visible < 2:
        used = ~np.asarray(np.isnan(bounds).any(axis=1))
        some = unknown[spread(len(unknown), affordable(n, 3 * least, mu))]
        if len(some) and not regression:
            used[some] = True
            bounds = np.where(np.isnan(bounds) & ~used[:, None], STANDARD, bounds)
            return Look(Coarse(len(some)), 3 * least, some, False, bounds, used)
    if visible < 1 and regression:
        used = ~all_of_them
    bounds = np.where(np.isnan(bounds), STANDARD, bounds)
    share = share_of_ranges(least, n, 1, mu)
    if not regression or (share is None and task.target_range is not None):
        return Look(None, 0.0, nothing, False, bounds, used)
    if share is not None:
        return Look(Zoom(1), min(share, most), nothing, True, bounds, used)
    return Look(Coarse(1), min(share_alone(n, 1, mu), most), nothing, True, bounds, used)


def spread(columns: int, most: int) -> NDArray[np.intp]:
    """Numbers of at most ``most`` of the columns, at equal distances.

    >>> spread(30, 3).tolist(), spread(2, 5).tolist(), spread(4, 0).tolist()
    ([5, 15, 25], [0, 1], [])
    """
    count = min(columns, most)
    return (np.arange(1, 2 * count, 2) * columns // max(2 * count, 1)).astype(np.intp)


def share_of_lengths(least: float, n: int, mu: float) -> float | None:
    """The share at which the lengths of rows are seen, between ``least`` and five times that; None
    if they would not be. A function of public values."""
    return next((k * least for k in (1, 2, 3, 4, 5) if enough(n, 1, k * least, mu)), None)


def visibility(p: int, n: int, mu: float) -> float:
    """How well slopes would be seen: below 1 they are noise. That of X'X has eigenvalues of
    sqrt(2 p) B^2 / (n mu) for rows of length B, about sqrt(p/2); a quarter of the budget doubles
    that, and what is below twice it is not seen. Second moments of columns are at most 1."""
    return 0.7 * n * mu / p**1.5
