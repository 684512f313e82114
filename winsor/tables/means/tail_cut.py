"""Choice of a cut for a tail: what winsorising loses against what noise costs. All post-processing.

One side of a column, as distances z >= 0 from its middle in units of its scale, was counted in
cells [0, 1), [1, 2), [2, 4), ... with noise. Beyond the last cell that noise cannot explain, the
tail is continued as a power law through the released counts, G(t) = G(t0) (t/t0)^-a with a between
2 and 4: no heavier than a tail whose variance just exists, or one big claim would buy a cut beyond
all data. Cutting at t loses about b(t) = t G(t) / ((a - 1) n) of the mean. A third of it is given
back, about half of it remains uncertain, and noise grows with t:

    t* minimises (b(t)/2)^2 + (t s / n)^2,       s the noise of a sum over its largest entry
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DOUBLINGS = 24
"""Cells reach to 2^24 scales from the middle; what lies beyond counts in the last."""

_CLEAR = 3.0  # standard deviations of a count that noise hardly reaches
_ABOVE = 2  # cells above the last full one that still count for the tail
_SLOPES = (2.0, 4.0)  # least and largest tail index


def distance_edges() -> Array:
    """Return 0, 1, 2, 4, ..., 2^DOUBLINGS."""
    return np.concatenate([[0.0], 2.0 ** np.arange(DOUBLINGS + 1)])


class Cut(NamedTuple):
    """A cut at ``at`` scales from the middle, and what the tail beyond it weighs in the mean."""

    at: float
    lost: float


@dataclass(frozen=True)
class Tail:
    """Noisy counts of one side, cell by cell, with the noise of each count."""

    counts: Array
    std: float
    n: int

    @property
    def last(self) -> int:
        """The last cell that is not empty beyond doubt, on the way out from the middle.

        Tails have no gaps: two cells that may well be empty end the walk, so that a phantom far
        out, one of fifty cells that noise may fill, does not pass for a claim.
        """
        clear = self.counts >= _CLEAR * self.std
        cell = 1
        while clear[cell + 1 : cell + 3].any():
            cell += 2 if clear[cell + 2 : cell + 3].any() else 1
        return cell

    def beyond(self, cell: int) -> float:
        """Return about how many rows stand in ``cell`` or above."""
        top = self.last + 1 + _ABOVE
        return max(float(self.counts[cell:top].sum()), self.std)

    @property
    def outside(self) -> float:
        """About how many rows stand above the last full cell: counted, but no more than the slope
        makes of those in it, and no fewer than noise may hide."""
        seen = float(self.counts[self.last + 1 : self.last + 1 + _ABOVE].sum())
        return min(max(seen, self.std), self.beyond(self.last) * 2.0**-self.slope)

    @property
    def slope(self) -> float:
        """The tail index between the last full cell and two cells before."""
        last = self.last
        early = max(1, last - 2)
        if early == last:
            return _SLOPES[1]
        ratio = self.beyond(early) / self.beyond(last)
        found = math.log(max(ratio, 1.0)) / ((last - early) * math.log(2))
        return min(max(found, _SLOPES[0]), _SLOPES[1])

    def cut(self, noise: float) -> Cut:
        """Return t* and b(t*) for a ``noise`` of the sum over its largest entry."""
        start = 2.0**self.last
        places = start * 2.0 ** np.linspace(-1, 8, 200)
        rows = self.outside * (places / start) ** -self.slope
        lost = rows * places / (self.slope - 1) / self.n
        best = int(np.argmin((lost / 2) ** 2 + (places * noise / self.n) ** 2))
        return Cut(float(places[best]), float(lost[best]))

    def moments(self, at: float) -> Array:
        """Return (mass, first, second moment) of this side winsorised at ``at``, per row of the
        table."""
        edges, last = distance_edges(), self.last
        total = np.array([1.0, 0.5, 1 / 3]) * max(self.counts[0], 0.0)  # uniform in the middle
        for cell in range(1, last + 1):
            low, high = edges[cell], min(edges[cell + 1], at)
            if low < at:
                total += max(self.counts[cell], 0.0) * _power_law(low, high, self._local(cell))
        end = min(edges[last + 1], at)
        left = float(np.clip(self.counts[last + 1 : last + 1 + _ABOVE].sum(), 0, None))
        total += left * _power_law(end, at, self.slope)
        return total / self.n

    def _local(self, cell: int) -> float:
        here, after = self.beyond(cell), self.beyond(cell + 1)
        return min(max(math.log2(max(here / after, 1.0)), 0.1), 8.0)


def _power_law(low: float, high: float, index: float) -> Array:
    """(1, E z, E z^2) of a density z^(-index-1) between ``low`` and ``high``."""
    if high <= low * (1 + 1e-9):
        return np.array([1.0, low, low**2])
    grid = np.geomspace(low, high, 65)
    middle = np.sqrt(grid[1:] * grid[:-1])
    weight = grid[:-1] ** -index - grid[1:] ** -index
    weight /= weight.sum()
    return np.array([1.0, weight @ middle, weight @ middle**2])
