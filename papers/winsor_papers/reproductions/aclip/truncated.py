"""DP-GD in lockstep: every row at every step, the runs of all seeds side by side.

    G_j = (s/n) sum_i f(g_ij / s),    f(u) = E phi(u (1 + eta)), eta ~ N(0, 1)
    W <- W - rate (G + noise),        the answers are the averages of x^1 .. x^N

That is `winsor.tables.RobustGD` with smoothing 1, and given an estimator's noise the coefficients
are the estimator's (`tests/papers/reproductions/aclip/test_truncated.py`). f is one odd function of
one variable, whose closed form costs a tenth of a microsecond for each coordinate of each row. Here
it is a cubic near zero, and beyond another one on each of two thousand pieces, exact to 1e-11, in
C; without a compiler it is the closed form. As in `lockstep.py` nothing here is private.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.polynomial import chebyshev, legendre, polynomial
from numpy.typing import NDArray
from scipy.special import ndtr

from winsor.core import compiled
from winsor.tables.linear.robust_gd import CEILING, smoothed
from winsor.tables.losses import Logistic, Squared
from winsor_papers.reproductions.aclip.lockstep import SOURCE, padded

Array = NDArray[np.float64]

SPLIT, SMALL = 4.0, 0.17
"""Where the pieces begin to be of 1/u; and below it f is its cubic to 1e-13."""
CUBE = 2 / 3
PIECES = (2048, 256)
DEGREE = 3


def truncated_answers(
    x: Array,
    y: Array,
    task: str,
    scale: float,
    rate: float,
    noise: Iterable[Array],
    kept: Sequence[int],
) -> Array:
    """(points, runs, d): the answers after the steps ``kept``, from zero. ``noise`` has one
    (runs, d) array for each step, which is added to the mean gradients."""
    found, w, total = [], np.zeros(0), np.zeros(0)
    for step, z in enumerate(noise, 1):
        if step == 1:
            w, total = np.zeros(z.shape), np.zeros(z.shape)
        w -= rate * (truncated_sums(x, y, task, w, scale) * (scale / len(x)) + z)
        total += w
        if step in kept:
            found.append(total / step)
    return np.array(found)


def truncated_sums(x: Array, y: Array, task: str, w: Array, scale: float) -> Array:
    """(runs, d): sum_i f(g_ij / scale) at the coefficients of every run."""
    found = library()
    return by_closed_form(x, y, task, w, scale) if found is None else found(x, y, task, w, scale)


def by_closed_form(x: Array, y: Array, task: str, w: Array, scale: float) -> Array:
    """The same as `RobustGD` does it."""
    residual = (Logistic() if task == "logistic" else Squared()).residual
    sums = [smoothed(x * (residual(x @ own, y) / scale)[:, None], 1.0).sum(axis=0) for own in w]
    return np.array(sums)


# ------------------------------------------------------------------------------------- the table


def by_integral(u: Array) -> Array:
    """f(u) for u > 0 by what it means, without the cancellation of its closed form for large u."""
    nodes, weights = legendre.leggauss(40)
    middle, half = np.zeros_like(u) - 1.0, math.sqrt(2) / u  # of eta, where |u (1 + eta)| <= sqrt 2
    eta = middle[:, None] + half[:, None] * nodes
    v = u[:, None] * (1 + eta)
    density = np.exp(-(eta**2) / 2) / math.sqrt(2 * math.pi)
    inside = ((v - v**3 / 6) * density) @ weights * half
    outside = CEILING * (ndtr(-(middle + half)) - ndtr(middle - half))
    return inside + outside


def pieces_of(f: Callable[[Array], Array], end: float, count: int) -> Array:
    """(count, 4): f on each piece of [0, end], lowest power first, of the place in the piece from
    -1/2 to 1/2: its interpolation at Chebyshev's nodes."""
    nodes = chebyshev.chebpts1(DEGREE + 1)
    places = (np.arange(count)[:, None] + 0.5 + nodes / 2) * (end / count)
    values = f(places.ravel()).reshape(places.shape)
    powers = polynomial.polyvander(nodes / 2, DEGREE)
    return np.ascontiguousarray(np.linalg.solve(powers, values.T).T)


def inner(u: Array) -> Array:
    """What the cubic lacks."""
    return smoothed(u, 1.0) - (u - CUBE * u**3)


def outer(v: Array) -> Array:
    """f(1/v)."""
    return by_integral(1 / v)


class _Table(ctypes.Structure):
    _fields_ = [
        ("inner", ctypes.c_void_p),
        ("outer", ctypes.c_void_p),
        ("pieces_inner", ctypes.c_int64),
        ("pieces_outer", ctypes.c_int64),
        ("split", ctypes.c_double),
        ("small", ctypes.c_double),
        ("cube", ctypes.c_double),
    ]


class Compiled:
    """Sums by the library."""

    def __init__(self, path: Path) -> None:
        found = ctypes.CDLL(str(path))
        if not found.winsor_supported():
            raise OSError("the processor has no AVX2 and FMA instructions")
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._sums = found.winsor_truncated
        self._sums.argtypes = [
            pointer, pointer, *[number] * 4, ctypes.c_double, pointer, pointer, pointer
        ]  # fmt: skip
        self._sums.restype = number
        self._pieces = (
            pieces_of(inner, SPLIT, PIECES[0]),
            pieces_of(outer, 1 / SPLIT, PIECES[1]),
        )
        addresses = (pieces.ctypes.data for pieces in self._pieces)
        self._table = _Table(*addresses, *PIECES, SPLIT, SMALL, CUBE)

    def __call__(self, x: Array, y: Array, task: str, w: Array, scale: float) -> Array:
        x, y, wide = np.ascontiguousarray(x), np.ascontiguousarray(y), padded(w)
        out = np.empty_like(wide)
        refused = self._sums(
            x.ctypes.data, y.ctypes.data, *x.shape, wide.shape[1] // 4, task == "logistic", scale,
            wide.ctypes.data, ctypes.addressof(self._table), out.ctypes.data,
        )  # fmt: skip
        return by_closed_form(x, y, task, w, scale) if refused else out.T[: len(w)]


@functools.cache
def library() -> Compiled | None:
    return compiled.load(SOURCE, Compiled, _agrees)


def _agrees(found: Compiled) -> bool:
    """Whether sums are those of the closed form, up to where that begins to cancel."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.geomspace(1e-6, 20, 301), -np.geomspace(1e-6, 20, 302)])[:, None]
    y, w = rng.integers(0, 2, 603).astype(float), 0.1 * rng.standard_normal((5, 1))
    return all(
        bool(np.abs(found(x, y, task, w, 0.9) - by_closed_form(x, y, task, w, 0.9)).max() < 1e-8)
        for task in ("logistic", "ridge")
    )
