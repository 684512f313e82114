"""A column's distribution as released: mass in cells. Everything here is post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

from winsor.core.checks import whole
from winsor.tables.losses import FARTHEST

Array = NDArray[np.float64]

ALONE, BESIDE = 6.0, 4.0
"""Standard deviations of noise above which a cell is not empty, alone and beside another one."""
TOGETHER = 2.0
"""The same for all cells beyond a point, once a first look has found where the rows are."""
FARTHER = 0.25
"""How much farther than where rows are for certain a range reaches on the evidence of `TOGETHER`,
in widths: of a few dozen empty cells some sum is that large in one column of ten, and a range that
is stretched costs a slope more than one that is a little short."""

_NEARLY_ALL = 0.9
_SELDOM = 0.05  # a bound on how often noise alone makes cells certain
_NARROWEST = 1e-9  # cells narrower than this share of their magnitude are one value


@dataclass(frozen=True)
class Distribution:
    """Mass between ascending ``edges``; what lies outside counts at the outermost edges."""

    edges: Array
    mass: Array
    """(len(edges) - 1,) non-negative, adds up to 1."""
    below: float = 0.0
    above: float = 0.0
    noise: float = 0.0
    """Standard deviation of the noise of a cell's mass."""
    indicator: bool = False
    """Whether the column is taken for one of zeros and ones
    (`winsor/tables/ranges/grid.py`)."""

    @staticmethod
    def of(edges: Array, counts: Array, std: float, n: int, finer: bool = False) -> Distribution:
        """Read noisy counts below, between and above ``edges``; ``std`` is the noise of each.

        ``finer`` says that an earlier look found rows from the first edge to the last.
        """
        inner = counts[1:-1]
        first, last = _trimmed(edges, inner, std) if finer else _run(inner, std, n)
        kept = np.zeros_like(inner)
        kept[first:last] = _rising(inner[first:last])
        outside = counts[0] + inner[:first].sum(), counts[-1] + inner[last:].sum()
        below, above = (float(np.clip(end / n, 0.0, 1.0)) for end in outside)
        return Distribution(np.asarray(edges), kept / kept.sum(), below, above, std / n)

    def _present(self) -> tuple[int, int]:
        full = np.flatnonzero(self.mass)
        return int(full[0]), int(full[-1]) + 1

    @property
    def low(self) -> float:
        """The left end of the cells that are not empty."""
        return float(self.edges[self._present()[0]])

    @property
    def high(self) -> float:
        """The right end of the cells that are not empty."""
        return float(self.edges[self._present()[1]])

    def quantile(self, levels: ArrayLike) -> Array:
        """Return quantiles, linear inside a cell."""
        first, last = self._present()
        edges = self.edges[first : last + 1]
        reached = np.concatenate([[0.0], np.cumsum(self.mass[first:last])])
        reached /= reached[-1]
        return np.interp(np.asarray(levels, dtype=np.float64), reached, edges)

    def cells(self, count: int) -> Array:
        """Return edges of at most ``count`` cells of equal mass, from `low` to `high`,
        ascending."""
        whole("count", count)
        edges = self.quantile(np.linspace(0.0, 1.0, count + 1))
        edges[0], edges[-1] = self.low, self.high
        return _ascending(edges)

    def finer(self, count: int) -> Array:
        """Return edges for another look: about ``count`` cells of equal mass, and every cell that
        is clearly not empty in quarters, so that a small group far out is found where it is."""
        quarters = [
            _quarters(low, high)
            for low, high, mass in zip(self.edges[:-1], self.edges[1:], self.mass, strict=True)
            if mass >= BESIDE * self.noise
        ]
        return _ascending(np.sort(np.concatenate([self.cells(count), *quarters])))

    def mean_and_deviation(self) -> tuple[float, float]:
        """Return both of the winsorised column, with rows uniform inside cells."""
        middle, width = (self.edges[1:] + self.edges[:-1]) / 2, np.diff(self.edges)
        mean = float(self.mass @ middle)
        return mean, float(np.sqrt(self.mass @ ((middle - mean) ** 2 + width**2 / 12)))

    @property
    def spread(self) -> float:
        """How far the outer twentieths reach beyond the middle half, over the width of that half:
        about 0.9 for a normal distribution, more where tails are heavy."""
        low, q1, q3, high = self.quantile([0.05, 0.25, 0.75, 0.95])
        width = max(q3 - q1, _NARROWEST * max(abs(q1), abs(q3)), 1e-300)
        return float((high - low - (q3 - q1)) / width)


def _rising(counts: Array) -> Array:
    """Noisy counts as mass >= 0 that adds up to 1: the nearest distribution function that rises.

    Sums from either end are combined by their noise, so that errors cancel; cutting counts at 0
    instead would add the positive half of all noise.
    """
    sums, m = np.cumsum(counts), len(counts)
    total = sums[-1]
    if total <= 0:
        return np.full(m, 1 / m)
    reached = np.clip(isotonic_regression(sums / total), 0.0, 1.0)
    reached[-1] = 1.0
    return np.diff(reached, prepend=0.0)


def _quarters(low: float, high: float) -> Array:
    """Three points inside a cell, in equal ratios where it spans more than a doubling."""
    if low > 0 and high > 2 * low:
        return np.geomspace(low, high, 5)[1:-1]
    if high < 0 and low < 2 * high:
        return -np.geomspace(-low, -high, 5)[1:-1]
    return np.linspace(low, high, 5)[1:-1]


def _run(inner: Array, std: float, n: int) -> tuple[int, int]:
    """The shortest run of cells with every cell that noise cannot explain and nearly all rows."""
    full = np.flatnonzero(_full(inner, std))
    least, most = (int(full[0]), int(full[-1]) + 1) if len(full) else (len(inner), 0)
    sums = np.concatenate([[0.0], np.cumsum(inner)])
    for length in range(max(1, most - least), len(inner) + 1):
        for first in range(max(0, most - length), min(least, len(inner) - length) + 1):
            wanted = _NEARLY_ALL * n - 2 * std * math.sqrt(length)
            if sums[first + length] - sums[first] >= wanted:
                return first, first + length
    return 0, len(inner)


def _trimmed(edges: Array, inner: Array, std: float) -> tuple[int, int]:
    """The cells without those at the ends that, taken together, noise alone explains.

    Cells are certain in runs with more than the noise of the largest of so many runs has. Beyond
    them a sum above `TOGETHER` counts no farther than `FARTHER`.
    """
    first, last = _likely(inner, std), len(inner) - _likely(inner[::-1], std)
    if first >= last:
        first, last = 0, len(inner)
    before, after = _certain(inner, std), _certain(inner[::-1], std)
    if before is None or after is None:
        return first, last
    sure, beyond = before, len(inner) - after
    room = FARTHER * (edges[beyond] - edges[sure])
    near = np.flatnonzero((edges >= edges[sure] - room) & (edges <= edges[beyond] + room))
    return min(max(first, int(near[0])), sure), max(min(last, int(near[-1])), beyond)


def _likely(side: Array, std: float) -> int:
    """How many cells from the start on noise explains, if it may be two deviations together."""
    heavy = np.cumsum(side) > TOGETHER * std * np.sqrt(np.arange(1, len(side) + 1))
    return int(np.argmax(heavy)) if heavy.any() else 0


def _certain(side: Array, std: float) -> int | None:
    """Return the first cell of the first run of 1, 2, 4, ... cells that noise does not explain,
    among all there are; of those that end together, the shortest."""
    lengths = 2 ** np.arange(math.floor(math.log2(len(side))) + 1)
    level = std * math.sqrt(2 * math.log(len(side) * len(lengths) / _SELDOM))
    sums = np.concatenate([[0.0], np.cumsum(side)])
    found = []
    for length in lengths.tolist():
        heavy = sums[length:] - sums[:-length] > level * math.sqrt(length)
        if heavy.any():
            begin = int(np.argmax(heavy))
            found.append((begin + length, -begin))
    return -min(found)[1] if found else None


def _full(inner: Array, std: float) -> NDArray[np.bool_]:
    """Cells that are not empty: far above the noise, or above it beside one that is."""
    full = inner >= ALONE * std
    clear = inner >= BESIDE * std
    while True:
        near = full.copy()
        for step in (1, 2):
            near[step:] |= full[:-step]
            near[:-step] |= full[step:]
        grown = full | (clear & near)
        if (grown == full).all():
            return full
        full = grown


def _ascending(edges: Array) -> Array:
    """Without edges that coincide up to rounding; always at least two."""
    kept = [float(edges[0])]
    for edge in edges[1:].tolist():
        if edge - kept[-1] > _NARROWEST * max(abs(edge), abs(kept[-1]), 1e-300):
            kept.append(edge)
    if len(kept) == 1:
        kept.append(float(np.nextafter(kept[0], np.inf)))
    return np.asarray(kept)


def range_of_means(
    y: Distribution, exposure: Distribution | None, mean: float
) -> tuple[float, float]:
    """Return between which values predicted means lie: not beyond the smallest and the largest y
    per exposure that were seen, nor farther than `FARTHEST` from ``mean`` (a link that is
    exponentiated must end somewhere)."""
    near, far = mean * math.exp(-FARTHEST), mean * math.exp(FARTHEST)
    longest, shortest = (1.0, 1.0) if exposure is None else (exposure.high, exposure.low)
    low = max(y.low, 0.0) / longest if longest > 0 else 0.0
    high = max(y.high, 0.0) / shortest if shortest > 0 else math.inf
    return min(max(low, near), mean), max(min(high, far), mean)
