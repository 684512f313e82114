"""Norms, clipped rows and sums of bounded rows in float64, for everything that releases sums.

A row is divided by a power of two before it is squared, which is exact, so that no magnitude
overflows or underflows. What is computed of a row is the same bits whatever stands beside it:
`einsum` adds in an order that depends on the number of columns alone, which BLAS does not promise.

Guarantee
---------
Blocks of `BLOCK` rows are added by any product, and their sums by Neumaier's compensated addition
(Higham 2002, sections 3.1 and 4.3). For n rows no longer than C a sum errs by at most
n C gamma_(BLOCK + 8), so one row moves it by at most C (1 + `slack`). Bounds between 1 / `FARTHEST`
and `FARTHEST`, which the prepaid door requires, keep all products of rows normal numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK = 4096
"""How many rows are added up before what rounding loses is noted."""
FARTHEST = 2.0**400
"""Public bounds lie between this and its inverse; a row that is longer counts as zero where its
factor, not the row, is cut."""
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
    norms = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):  # no copy of all rows
        own = rows[start : start + BLOCK]
        short, power = _scaled(own if centre is None else own - centre)
        norms[start : start + BLOCK] = np.ldexp(np.sqrt(_added("ij,ij->i", short, short)), power)
    return np.where(np.isnan(norms), np.inf, norms)


@quiet
def entry_norms(entries: Array, starts: NDArray[np.int64]) -> Array:
    """Return the norms of the rows of a sparse table: those of ``entries`` from each of the
    ``starts`` to the next one."""
    n, row = len(starts) - 1, np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    largest = np.zeros(n)
    np.maximum.at(largest, row, np.abs(entries))
    power = np.frexp(largest)[1]
    short = np.ldexp(entries, -power[row])
    return np.asarray(np.ldexp(np.sqrt(np.bincount(row, short * short, n)), power))


@quiet
def clip_rows(rows: Array, radius: float | Array, centre: Array | None = None) -> Array:
    """Return the rows, less ``centre`` if there is one, scaled into the ball of ``radius``: one
    number, or one for each row. A row with an entry that is not finite becomes zero."""
    rows = rows if centre is None else rows - centre
    short, power = _scaled(rows)
    norms, bound = np.sqrt(_added("ij,ij->i", short, short)), np.broadcast_to(radius, len(rows))
    inside = norms <= np.ldexp(bound, -power)
    clipped = np.where(inside[:, None], rows, short * quotients(bound, norms)[:, None])
    return np.where(np.isfinite(norms)[:, None], clipped, 0.0)


@quiet
def limits(norms: Array, bound: float) -> Array:
    """Return for each norm the largest factor of a row no longer than ``bound``; 0 where the norm
    exceeds `FARTHEST` or is not a number."""
    return np.where(norms <= FARTHEST, bound / np.maximum(norms, 1 / FARTHEST), 0.0)


@quiet
def quotients(above: Array, below: Array) -> Array:
    """Return ``above / below``, and 0 where ``below`` is 0 or the quotient is not a number."""
    found = above / below
    return np.where((below == 0) | np.isnan(found), 0.0, found)


@quiet
def within(values: Array, bound: float | Array = 1.0) -> Array:
    """Return values cut to [-bound, bound]; what is not a number becomes 0."""
    return np.clip(np.where(np.isnan(values), 0.0, values), -np.asarray(bound), bound)


@quiet
def squares(values: Array) -> Array:
    """Return the square of each value, infinity where it exceeds all numbers."""
    return np.asarray(values * values)


@quiet
def products(rows: Array, weights: Array) -> Array:
    """Return ``rows @ weights``, (n,) or (n, k), each row by itself."""
    if weights.ndim == 1:
        return _added("ij,j->i", rows, weights)
    found = np.empty((len(rows), weights.shape[1]))
    for place, column in enumerate(weights.T):
        found[:, place] = _added("ij,j->i", rows, column)
    return found


def summed(part: Callable[[slice], Array], n: int) -> Array:
    """Return the sum of ``part`` over blocks of ``n`` rows."""
    total = Total()
    for start in range(0, max(n, 1), BLOCK):  # the sum over no rows has a shape, too
        total.add(part(slice(start, start + BLOCK)))
    return total.value


def sum_rows(rows: Array) -> Array:
    """Return the sum of the rows of an array of any number of dimensions."""
    return summed(lambda piece: rows[piece].sum(axis=0), len(rows))


def sum_weights(cells: NDArray[np.integer], weights: Array, count: int) -> Array:
    """Return the sum of the ``weights`` of the rows in each of ``count`` cells."""
    return summed(lambda own: np.bincount(cells[own], weights[own], count), len(cells))


class Total:
    """The sum of arrays of one shape, with what rounding loses (Neumaier 1974)."""

    def __init__(self) -> None:
        self._sum, self._lost = np.zeros(0), np.zeros(0)

    @quiet
    def add(self, part: Array) -> None:
        """Add an array."""
        if not self._sum.size:
            self._sum, self._lost = np.zeros(part.shape), np.zeros(part.shape)
        larger = self._sum + part
        swapped = np.abs(self._sum) >= np.abs(part)
        self._lost += np.where(swapped, (self._sum - larger) + part, (part - larger) + self._sum)
        self._sum = larger

    @property
    def value(self) -> Array:
        """The sum so far."""
        return np.asarray(self._sum + self._lost)


def _scaled(rows: Array) -> tuple[Array, NDArray[np.int32]]:
    """Rows divided by powers of two that bring the largest entry into [1/2, 1), and the powers."""
    power = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1]
    return np.ldexp(rows, -power[:, None]), power


def _added(terms: str, rows: Array, other: Array) -> Array:
    total, rows, other = np.zeros(len(rows)), *map(np.ascontiguousarray, (rows, other))
    for start in range(0, rows.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        total += np.einsum(terms, rows[:, part], other[..., part])
    return total
