"""Norms, clipped rows and sums of bounded rows in float64, for everything that releases sums.

Rows are divided by powers of two before they are squared, so that nothing overflows or underflows.
A row gives the same bits whatever stands beside it: the order of `einsum` depends on the number of
columns alone, that of BLAS does not.

Guarantee
---------
Blocks of `BLOCK` rows are added by any product, and their sums by Neumaier's compensated addition
(Higham 2002, sections 3.1 and 4.3): the sum of n rows no longer than C errs by at most
n C gamma_(BLOCK + 8), and one row moves it by at most C (1 + `slack`). A `Sensitivity` lies between
1 / `FARTHEST` and `FARTHEST`, where products of bounded rows are normal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK = 4096  # rows that are added up before what rounding loses is noted
FARTHEST = 2.0**400
_COLUMNS = 8192  # `einsum` cuts longer rows where its buffers end, which depends on other rows

quiet = np.errstate(all="ignore")
"""A decorator: warnings of NumPy about private values would be releases."""


def slack(n: int, size: int) -> float:
    """Return the share of a bound by which rounding may exceed it, in a sum of ``size`` numbers
    over ``n`` rows: 1.5e-8 for 16,384 rows, 9.1e-5 for a hundred million."""
    return 2.0**-52 * (n * (BLOCK + 8) + size + 16)


@quiet
def row_norms(rows: Array, centre: Array | None = None) -> Array:
    """Return the (n,) Euclidean norms of the rows, or their distances from the public ``centre``;
    infinity where an entry is not finite or the norm exceeds all numbers."""
    if len(rows) > BLOCK:  # no copy of all rows
        return np.concatenate([row_norms(rows[own], centre) for own in blocks(len(rows))])
    _, norms, power = _scaled(rows if centre is None else rows - centre)
    return np.where(np.isnan(norms), np.inf, np.ldexp(norms, power))


@quiet
def clip_rows(rows: Array, radius: float | Array, centre: Array | None = None) -> Array:
    """Return the rows, less ``centre`` if there is one, scaled into the ball of ``radius``: one
    number, or one for each row. A row with an entry that is not finite becomes zero."""
    rows = rows if centre is None else rows - centre
    (short, norms, power), bound = _scaled(rows), np.broadcast_to(radius, len(rows))
    inside = norms <= np.ldexp(bound, -power)
    clipped = np.where(inside[:, None], rows, short * (bound / norms)[:, None])
    return np.where(np.isfinite(norms)[:, None], clipped, 0.0)


@quiet
def squares(values: Array) -> Array:
    """Return the square of each value, infinity where it exceeds all numbers."""
    return np.asarray(values * values)


def products(rows: Array, weights: Array) -> Array:
    """Return ``rows @ weights``, (n,) or (n, k), each row by itself."""
    if weights.ndim == 1:
        return _added("ij,j->i", rows, weights)
    return np.stack([_added("ij,j->i", rows, column) for column in weights.T], axis=1)


def blocks(n: int) -> Iterator[slice]:
    """Return the blocks of ``n`` rows, at least one."""
    return (slice(start, start + BLOCK) for start in range(0, max(n, 1), BLOCK))


@quiet
def summed(parts: Iterable[Array]) -> Array:
    """Return the sum of arrays of one shape, with what rounding loses (Neumaier 1974)."""
    total = lost = np.zeros(())
    for part in parts:
        larger = total + part
        swapped = np.abs(total) >= np.abs(part)
        lost = lost + np.where(swapped, (total - larger) + part, (part - larger) + total)
        total = larger
    return np.asarray(total + lost)


def sum_rows(rows: Array) -> Array:
    """Return the sum of the rows of an array of any number of dimensions."""
    return summed(rows[own].sum(axis=0) for own in blocks(len(rows)))


def sum_weights(cells: NDArray[np.integer], weights: Array, count: int) -> Array:
    """Return the sum of the ``weights`` of the rows in each of ``count`` cells."""
    pieces = ((cells[own], weights[own]) for own in blocks(len(cells)))
    return summed(np.bincount(*piece, count).astype(np.float64) for piece in pieces)


def _scaled(rows: Array) -> tuple[Array, Array, NDArray[np.int32]]:
    """Rows over powers of two, which bring the largest entry into [1/2, 1), their norms, powers."""
    power = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1]
    short = np.ldexp(rows, -power[:, None])
    return short, np.sqrt(_added("ij,ij->i", short, short)), power


def _added(terms: str, rows: Array, other: Array) -> Array:
    total, rows, other = np.zeros(len(rows)), *map(np.ascontiguousarray, (rows, other))
    for start in range(0, rows.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        total += np.einsum(terms, rows[:, part], other[..., part])
    return total
