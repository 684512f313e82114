"""Public grids on which nothing is known of a column yet, and columns of zeros and ones.

    signed_log_grid   ..., [-16^(k+1), -16^k), ..., [-tiny, tiny), ..., [16^k, 16^(k+1)), ...
    grid_between      the same, ending with two bounds
    cells_between     where one look must do: even cells between bounds, those beside zero halved
                      again and again, then cut in ratios (bounds from zero on are often far above
                      what a column is)

The grid covers magnitudes from 1e-6 to 1e12; what lies beyond counts in its last cell. A column of
values as large as 1e300 is cut there: state its bounds.

Indicators are recognised in the first histogram at no price: two cells about 0 and 1, too narrow
for anything else, hold all rows but a few (`FEW`, and what the noise of two counts may hide). What
else such a column may hold is winsorised to 0 and 1, and it takes no part in later histograms,
whose noise falls with the number of columns that do.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]

SMALLEST, LARGEST, RATIO = 2.0**-20, 2.0**40, 16.0
CELLS, HALVINGS, CUTS = 8, 8, 8
"""Cells of `cells_between`: few, since an eighth of the rows hardly exceeds a noise of a tenth."""


def signed_log_grid() -> Array:
    """Return the edges of the cells, ascending.

    >>> edges = signed_log_grid()
    >>> len(edges), bool((np.diff(edges) > 0).all()), bool((edges == -edges[::-1]).all())
    (32, True, True)
    """
    count = round(np.log(LARGEST / SMALLEST) / np.log(RATIO))
    sizes = SMALLEST * RATIO ** np.arange(count + 1)
    return np.concatenate([-sizes[::-1], sizes])


def grid_between(low: float, high: float) -> Array:
    """Return the same grid between two bounds: ratios from the larger of them down.

    >>> grid_between(0.0, 4096.0)[-4:].tolist(), grid_between(100.0, 4096.0).tolist()
    ([1.0, 16.0, 256.0, 4096.0], [100.0, 256.0, 4096.0])
    """
    count = round(np.log(LARGEST / SMALLEST) / np.log(RATIO))
    sizes = max(abs(low), abs(high)) * RATIO ** -np.arange(1.0, count + 1)
    inner = np.concatenate([-sizes, sizes[::-1]])
    return np.concatenate([[low], inner[(inner > low) & (inner < high)], [high]])


def cells_between(low: float, high: float, cells: int = CELLS) -> Array:
    """Return the edges of so many even cells between two bounds, and of finer ones beside zero.

    >>> cells_between(80.0, 96.0).tolist()
    [80.0, 82.0, 84.0, 86.0, 88.0, 90.0, 92.0, 94.0, 96.0]
    >>> cells_between(0.0, 8.0)[[0, -10, -9, -8, -7]].tolist()
    [0.0, 0.25, 0.5, 1.0, 2.0]
    """
    edges = np.linspace(low, high, cells + 1)
    if low > 0 or high < 0:
        return edges
    ratios = np.append(np.full(HALVINGS, 2.0), np.full(CUTS, RATIO))
    sizes = (high - low) / cells / np.cumprod(ratios)
    finer = np.concatenate([-sizes, sizes])
    return np.unique(np.concatenate([edges, finer[(finer > low) & (finer < high)]]))


WIDTH = 2.0**-20
"""Half the width of a cell about 0 or 1."""
FEW = 0.002
"""Rows that may be neither, as a share."""
_CERTAIN = 3.0  # standard deviations of the noise of both counts
_MOST_DOUBT = 0.2  # a share of rows beyond which two counts say nothing
_LEAST = 1e-6  # mass of a value that was not seen


def with_narrow_cells(edges: Array) -> Array:
    """Return the ``edges`` with those of the narrow cells, as far as 0 and 1 lie between them."""
    for value in (0.0, 1.0):
        if edges[0] <= value <= edges[-1]:
            outside = np.abs(edges - value) > WIDTH
            edges = np.sort(np.append(edges[outside], [value - WIDTH, value + WIDTH]))
    return edges


def indicator(edges: Array, counts: Array, std: float, n: int) -> Distribution | None:
    """Return the distribution of a column that holds nothing but zeros and ones, as far as noisy
    ``counts`` below, between and above ``edges`` tell; None of any other."""
    left, right = edges[:-1], edges[1:]
    seen = [
        float(counts[1:-1][(left >= value - WIDTH) & (right <= value + WIDTH)].sum())
        for value in (0.0, 1.0)
    ]
    doubt = _CERTAIN * math.sqrt(2) * std
    if doubt > _MOST_DOUBT * n or sum(seen) < n * (1 - FEW) - doubt:
        return None
    ones = min(max(seen[1] / max(sum(seen), 1.0), _LEAST), 1 - _LEAST)
    cells = np.array([-WIDTH, WIDTH, 1 - WIDTH, 1 + WIDTH])
    return Distribution(cells, np.array([1 - ones, 0.0, ones]), noise=std / n, indicator=True)
