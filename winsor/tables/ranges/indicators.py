"""Columns of zeros and ones, recognised in the first histogram at no price.

    edges       two cells about 0 and 1, too narrow for anything else, among those of a public grid:
                a row still stands in one cell of each column
    recognised  if all rows but a few (`FEW`, and what the noise of two counts may hide) are there

Most columns of a table of categories are of this kind, and few of them show more than zeros: the
ones of a rare category drown in noise, but that all the rest are zeros does not. What else such a
column may hold is winsorised to 0 and 1. Once recognised a column takes no part in later
histograms, whose noise falls with the number of columns that do.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]

WIDTH = 2.0**-20
"""Half the width of a cell about 0 or 1."""
FEW = 0.002
"""Rows that may be neither, as a share."""
_CERTAIN = 3.0  # standard deviations of the noise of both counts
_MOST_DOUBT = 0.2  # a share of rows beyond which two counts say nothing
_LEAST = 1e-6  # mass of a value that was not seen


def with_narrow_cells(edges: Array) -> Array:
    """The ``edges`` with those of the narrow cells, as far as 0 and 1 lie between them."""
    for value in (0.0, 1.0):
        if edges[0] <= value <= edges[-1]:
            outside = np.abs(edges - value) > WIDTH
            edges = np.sort(np.append(edges[outside], [value - WIDTH, value + WIDTH]))
    return edges


def indicator(edges: Array, counts: Array, std: float, n: int) -> Distribution | None:
    """The distribution of a column that holds nothing but zeros and ones, as far as noisy
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
