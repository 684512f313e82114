"""Which columns a fit looks at before it descends, by public values alone: n, the budget, how many
columns there are, and the bounds that were given.

    three rounds  of histograms of all columns, and of y: inside bounds a column may be anywhere.
                  They begin with a public grid that ends with the bounds
    one round     rows too few for that at its usual share, and all columns have bounds: these save
                  the search for where columns are. Cells between the bounds, a third of the noise
    blunt         a blunt look (`coarse.py`) at columns without bounds, and at y; bounds that were
                  given are used as they are
    a few         rows too few even for that, and slopes of all columns would be noise: a classifier
                  takes a blunt look at as many columns as it affords, spread over the table, since
                  neighbours are often alike, and leaves the others alone
    y alone       a regression, or rows too few even for one column: bounds are used as they are,
                  columns without are taken for standardised ones; with hardly any rows, y is not
                  looked for where ``target_range`` says enough. Where slopes would be noise, a
                  regression learns its level alone

Columns that are all in (0, 1) or (-1, 1) are taken for scaled ones, and not looked at. Beside
others they are: a proportion of a few per cent, taken as it is, is lost in the noise of X'X, and
indicators are recognised in the first round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from winsor.tables.inputs import scaled
from winsor.tables.ranges.bins import Bins
from winsor.tables.ranges.coarse import STANDARD, Coarse
from winsor.tables.ranges.grid import cells_between, grid_between
from winsor.tables.ranges.zoom import Zoom

Array = NDArray[np.float64]

MOST_ALONE = 0.5
"""Largest share of a look of an additive model at the target alone."""

_MOST_NOISE = 0.12  # of a count, as a share of the rows: a blunt look shows nothing beyond
_A_SIXTEENTH = 16.0


@dataclass(frozen=True)
class PublicFacts:
    """What is public about a fit: its size, its budget, the bounds that were given."""

    n: int
    mu: float
    """mu of the one Gaussian release that would spend the budget."""
    size: int
    """Number of parameters of an output."""
    bounds: Array
    """(d, 2), NaN where a column has none."""
    regression: bool
    target_range: tuple[float, float] | None


@dataclass(frozen=True)
class RangePlan:
    """``zoom`` is the plan of the histograms, with this ``share`` of the budget."""

    zoom: Zoom | None
    share: float
    unknown: NDArray[np.intp]
    """Columns that are looked at."""
    target: bool
    """Whether y is looked at."""
    bounds: Array
    """Bounds of all columns, with what is assumed of those that nobody looks at."""
    used: NDArray[np.bool_]
    """Columns that get a slope."""

    @staticmethod
    def of(public: PublicFacts, least: float, most: float) -> RangePlan:
        """Plan the look; ``least`` is its usual share, ``most`` the largest that may be spent."""
        n, mu, bounds, regression = public.n, public.mu, public.bounds, public.regression
        unknown, all_of_them = np.arange(len(bounds)), np.ones(len(bounds), dtype=bool)
        if scaled(bounds).all():
            unknown = unknown[:0]
        share = share_of_ranges(least, n, len(unknown) + 1, mu)
        columns, known = len(unknown) + regression, not np.isnan(bounds).any()
        visible = visibility(public.size, n, mu)
        if known and len(unknown) and share != least and (visible >= 1 or not regression):
            once = share_of_one_round(least, n, columns, mu)
            if once is not None:
                one = Zoom(columns, rounds=1, indicators=True)
                return RangePlan(one, once, unknown, regression, bounds, all_of_them)
        elif share is not None:
            zoom = Zoom(columns, indicators=True) if columns else None
            return RangePlan(zoom, share, unknown, regression, bounds, all_of_them)
        unknown = np.flatnonzero(np.isnan(bounds).any(axis=1))
        columns = len(unknown) + regression
        if len(unknown) and enough(n, columns, 3 * least, mu):
            blunt = Coarse(columns)
            return RangePlan(blunt, 3 * least, unknown, regression, bounds, all_of_them)
        return _of_few_rows(public, unknown, least, most, visible)

    def start(self, target_range: tuple[float, float] | None) -> list[Array | None]:
        """Return public edges of the first round: of the columns, then of y in the units of its
        range."""
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


def _of_few_rows(
    public: PublicFacts, unknown: NDArray[np.intp], least: float, most: float, visible: float
) -> RangePlan:
    """The look where rows are too few for histograms of all columns."""
    n, mu, bounds, regression = public.n, public.mu, public.bounds, public.regression
    nothing, used = np.empty(0, dtype=np.intp), np.ones(len(bounds), dtype=bool)
    if visible < 2:
        used = ~np.asarray(np.isnan(bounds).any(axis=1))
        some = unknown[spread(len(unknown), affordable(n, 3 * least, mu))]
        if len(some) and not regression:
            used[some] = True
            bounds = np.where(np.isnan(bounds) & ~used[:, None], STANDARD, bounds)
            return RangePlan(Coarse(len(some)), 3 * least, some, False, bounds, used)
    if visible < 1 and regression:
        used = np.zeros(len(bounds), dtype=bool)
    bounds = np.where(np.isnan(bounds), STANDARD, bounds)
    share = share_of_ranges(least, n, 1, mu)
    if not regression or (share is None and public.target_range is not None):
        return RangePlan(None, 0.0, nothing, False, bounds, used)
    if share is not None:
        return RangePlan(Zoom(1), min(share, most), nothing, True, bounds, used)
    alone = min(share_alone(n, 1, mu), most)
    return RangePlan(Coarse(1), alone, nothing, True, bounds, used)


def look_for_lines(bins: Bins, values: int, least: float, n: int, mu: float) -> tuple[Bins, float]:
    """Return what an additive model of lines looks at, and its share; zero if nothing is looked at.

    The last ``values`` columns of ``bins`` are those of the loss; ``least`` is the usual share.
    """
    seen = visibility(bins.columns, n, mu) >= 1 or not values
    once = share_of_one_round(least, n, bins.columns, mu) if bins.known and seen else None
    if once is not None:
        return replace(bins, inside=True), once
    if share_of_ranges(least, n, bins.columns, mu) is not None:
        return replace(bins, inside=True), least
    if enough(n, bins.columns, 3 * least, mu):
        return replace(bins, coarse=True), 3 * least
    if not values:
        most = affordable(n, 3 * least, mu)
        few = visibility(bins.columns + 1, n, mu) < 2 and most > 0
        some = tuple(spread(bins.columns, most).tolist()) if few else None
        return replace(bins, coarse=True, looked_at=some), 3 * least if some else 0.0
    bins = replace(bins, looked_at=tuple(range(bins.columns - values, bins.columns)))
    share = share_of_ranges(least, n, values, mu)
    if share is not None:
        return bins, share
    needed = bool(bins.unknown[bins.columns - values :].any())
    bins = replace(bins, coarse=True)
    return bins, min(share_alone(n, values, mu), MOST_ALONE) if needed else 0.0


# ----------------------------------------------------------- shares, by public values: mu as above


def enough(n: int, columns: int, share: float, mu: float) -> bool:
    """Say whether the noise of a count in a blunt look is small beside ``n`` rows."""
    return math.sqrt(2 * columns / share) / (mu * n) < _MOST_NOISE


def affordable(n: int, share: float, mu: float) -> int:
    """Return the largest number of columns for which there are `enough` rows."""
    return max(math.ceil(share * (_MOST_NOISE * mu * n) ** 2 / 2) - 1, 0)


def share_alone(n: int, columns: int, mu: float) -> float:
    """Return the share at which a blunt look at so few ``columns`` alone has a count's noise of a
    sixteenth of the rows, between 0.1 and 0.6: without a target's range nothing else is learnt."""
    return min(max(2 * columns * (_A_SIXTEENTH / (mu * n)) ** 2, 0.1), 0.6)


def share_of_one_round(least: float, n: int, columns: int, mu: float) -> float | None:
    """Return the share at which a count's noise in one round is about a twentieth of the rows,
    between ``least`` and three times that; None if it would still be a tenth."""
    noise = math.sqrt(columns) / (mu * n)  # at a share of 1
    share = min(max((noise / 0.05) ** 2, least), 3 * least)
    return None if noise / math.sqrt(share) > 0.1 else share


def share_of_ranges(least: float, n: int, columns: int, mu: float) -> float | None:
    """Return the share at which a count's noise in three rounds is about a hundredth of the rows,
    between ``least`` and three times that; None if it would still be a twentieth."""
    noise = math.sqrt(3 * columns) / (mu * n)  # at a share of 1
    share = min(max((noise / 0.01) ** 2, least), 3 * least)
    return None if noise / math.sqrt(share) > 0.05 else share


def share_of_lengths(least: float, n: int, mu: float) -> float | None:
    """Return the share at which the lengths of rows are seen, between ``least`` and five times
    that; None if they would not be."""
    return next((k * least for k in (1, 2, 3, 4, 5) if enough(n, 1, k * least, mu)), None)


def spread(columns: int, most: int) -> NDArray[np.intp]:
    """Return the numbers of at most ``most`` of the columns, at equal distances.

    >>> spread(30, 3).tolist(), spread(2, 5).tolist(), spread(4, 0).tolist()
    ([5, 15, 25], [0, 1], [])
    """
    count = min(columns, most)
    return (np.arange(1, 2 * count, 2) * columns // max(2 * count, 1)).astype(np.intp)


def visibility(p: int, n: int, mu: float) -> float:
    """Say how well ``p`` slopes would be seen; below 1 they are noise.

    The noise of X'X has eigenvalues of sqrt(2 p) B^2 / (n mu) for rows of length B, about
    sqrt(p/2); a quarter of the budget doubles that, and what is below twice it is not seen. Second
    moments of columns are at most 1.
    """
    return 0.7 * n * mu / p**1.5
