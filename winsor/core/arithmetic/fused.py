"""total - factor * x with one rounding (a fused multiply-add), the same bits on every machine.

NumPy has no such operation. BLAS's axpy fuses in whole blocks on most processors, so it is used
where it was seen to agree with the exact path below on public numbers; the rest goes that path.

References
----------
Boldo & Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
to odd, IEEE Transactions on Computers 57(4), 2008.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import daxpy

Array = NDArray[np.float64]
_BLOCK = 64  # axpy leaves a remainder below its unrolled loop, which it may not fuse
_PIECE = 1 << 13  # below the length from which BLAS divides work among threads
_SPLIT = 2.0**27 + 1


def subtract_multiple(total: Array, x: Array, factor: float) -> None:
    """Subtract ``factor * x`` from ``total`` in place, rounding each result once."""
    whole = len(total) // _BLOCK * _BLOCK if axpy_fuses() else 0
    for start in range(0, whole, _PIECE):
        stop = min(start + _PIECE, whole)
        daxpy(x[start:stop], total[start:stop], a=-factor)
    exact_subtract_multiple(total[whole:], x[whole:], factor)


def exact_subtract_multiple(total: Array, x: Array, factor: float) -> None:
    """Subtract as `subtract_multiple` does, by error-free transformations alone."""
    for start in range(0, len(total), _PIECE):
        piece = total[start : start + _PIECE]
        high, low = _product(x[start : start + _PIECE], -factor)
        top, rest = _sum(piece, low)
        first, second = _sum(high, top)
        piece[:] = first + _odd_sum(rest, second)


def _product(x: Array, y: float) -> tuple[Array, Array]:
    """x y as an unevaluated sum of two numbers (Dekker)."""
    x_high = x * _SPLIT - (x * _SPLIT - x)
    y_high = y * _SPLIT - (y * _SPLIT - y)
    x_low, y_low, high = x - x_high, y - y_high, x * y
    return high, ((x_high * y_high - high) + x_high * y_low + x_low * y_high) + x_low * y_low


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as an unevaluated sum of two numbers (Knuth)."""
    total = a + b
    moved = total - a
    return total, (a - (total - moved)) + (b - moved)


def _odd_sum(a: Array, b: Array) -> Array:
    """a + b rounded to odd: where it is inexact, the neighbour whose last bit is set."""
    total, error = _sum(a, b)
    even = (total.view(np.int64) & 1) == 0
    away = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, away), total)


@functools.cache
def axpy_fuses() -> bool:
    """Return whether axpy of this machine's BLAS rounds once, in blocks."""
    k = np.arange(1.0, 4 * _BLOCK + 1)
    total, x = np.sin(k), np.cos(k * k)
    exact, fast = total.copy(), total.copy()
    exact_subtract_multiple(exact, x, 0.7390851332151607)
    daxpy(x, fast, a=-0.7390851332151607)
    return bool(np.array_equal(exact, fast))
