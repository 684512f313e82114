"""Rows of a table cut to a ball: norms, factors and clipped rows, in float64.

A row whose norm is not finite (an entry is, or its square overflows) counts as zero. The factor of
a row depends on that row and on public numbers only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def row_norms(rows: Array, centre: Array | None = None) -> Array:
    """Return the (n,) Euclidean norms of the rows, or their distances from the public ``centre``.

    Squares are added up by `einsum`, row by row: the norm of a row does not depend on the others.
    """
    if centre is not None:
        rows = rows - centre
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def clip_factors(norms: Array, bound: float | Array) -> Array:
    """Return min(1, bound / norm) for each row, and 0 where the norm is not finite.

    ``bound`` is positive: one number, or one for each row. The factor times the norm may exceed the
    bound by rounding; a caller whose proof needs room divides the bound by (1 + rounding) before.
    """
    finite = np.isfinite(norms)
    known = np.where(finite, norms, 1.0)  # inf / inf would warn, NaN would spread
    return np.asarray(np.where(finite, bound / np.maximum(known, bound), 0.0))


def clip_rows(rows: Array, radius: float | Array, centre: Array | None = None) -> Array:
    """Return the rows, less ``centre`` if there is one, scaled into the ball of ``radius``.

    Rows whose norm is not finite become zero.
    """
    if centre is not None:
        rows = rows - centre
    norms = row_norms(rows)
    kept = np.where(np.isfinite(norms)[:, None], rows, 0.0)  # 0 times infinity is no number
    return np.asarray(kept * clip_factors(norms, radius)[:, None])
