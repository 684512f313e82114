"""The public grid on which nothing is known of a column yet: signed, in equal ratios, with a zero.

    ..., [-16^(k+1), -16^k), ..., [-tiny, tiny), ..., [16^k, 16^(k+1)), ...

It covers magnitudes from 1e-6 to 1e12, whatever the unit; what lies beyond counts in its last cell.
A column of values as large as 1e300 is cut at the end of the grid: state its bounds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SMALLEST, LARGEST, RATIO = 2.0**-20, 2.0**40, 16.0


def signed_log_grid() -> Array:
    """The edges of the cells, ascending.

    >>> edges = signed_log_grid()
    >>> len(edges), bool((np.diff(edges) > 0).all()), bool((edges == -edges[::-1]).all())
    (32, True, True)
    """
    count = round(np.log(LARGEST / SMALLEST) / np.log(RATIO))
    sizes = SMALLEST * RATIO ** np.arange(count + 1)
    return np.concatenate([-sizes[::-1], sizes])
