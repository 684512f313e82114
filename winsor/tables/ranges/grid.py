"""The public grid on which nothing is known of a column yet: signed, in equal ratios, with a zero.

    ..., [-16^(k+1), -16^k), ..., [-tiny, tiny), ..., [16^k, 16^(k+1)), ...

It covers magnitudes from 1e-6 to 1e12, whatever the unit; what lies beyond counts in its last cell.
A column of values as large as 1e300 is cut at the end of the grid: state its bounds.

Between bounds the grid ends with them (`grid_between`): a look from there finds what it would find
without bounds, in any unit, and nothing beyond. Where one look must do, cells are even between the
bounds, and those beside zero are halved again and again, then cut in ratios (`cells_between`):
bounds from zero on are often far above what a column is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SMALLEST, LARGEST, RATIO = 2.0**-20, 2.0**40, 16.0
CELLS, HALVINGS, CUTS = 8, 8, 8
"""Of `cells_between`: an eighth of the rows stands out of a noise of a tenth, hardly."""


def signed_log_grid() -> Array:
    """The edges of the cells, ascending.

    >>> edges = signed_log_grid()
    >>> len(edges), bool((np.diff(edges) > 0).all()), bool((edges == -edges[::-1]).all())
    (32, True, True)
    """
    count = round(np.log(LARGEST / SMALLEST) / np.log(RATIO))
    sizes = SMALLEST * RATIO ** np.arange(count + 1)
    return np.concatenate([-sizes[::-1], sizes])


def grid_between(low: float, high: float) -> Array:
    """The same between two bounds: ratios from the larger of them down.

    >>> grid_between(0.0, 4096.0)[-4:].tolist(), grid_between(100.0, 4096.0).tolist()
    ([1.0, 16.0, 256.0, 4096.0], [100.0, 256.0, 4096.0])
    """
    count = round(np.log(LARGEST / SMALLEST) / np.log(RATIO))
    sizes = max(abs(low), abs(high)) * RATIO ** -np.arange(1.0, count + 1)
    inner = np.concatenate([-sizes, sizes[::-1]])
    return np.concatenate([[low], inner[(inner > low) & (inner < high)], [high]])


def cells_between(low: float, high: float, cells: int = CELLS) -> Array:
    """The edges of so many even cells between two bounds, and of finer ones beside zero.

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
