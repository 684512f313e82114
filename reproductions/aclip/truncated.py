"""DP-GD with its smoothed truncation read off a table, for 400 passes over 100,000 rows.

The truncation f(u) = E phi(u (1 + eta)), eta ~ N(0, 1), of `winsor.linear.RobustGD` is one odd
function of one variable, and its closed form costs a tenth of a microsecond for each coordinate of
each row. Here it is a cubic near zero, and beyond another one on each of two thousand pieces,
exact to 1e-11; the sum over rows is taken in C (`_truncated.c`). Everything else is `RobustGD`: the
fit is an estimator's, with its noise and its ledger. Without a compiler `RobustGD` itself runs.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.polynomial import chebyshev, legendre, polynomial
from numpy.typing import NDArray
from scipy.special import ndtr

from winsor import compiled
from winsor.checks import positive, whole
from winsor.contract import Sensitivity
from winsor.grads.glm import Logistic, Loss
from winsor.linear import RobustGD
from winsor.linear.descent import Schedule, Trail, descend
from winsor.linear.robust_gd import CEILING, PROOF, smoothed
from winsor.linear.task import LinearTask, Session, Solution
from winsor.release.budget import Payment
from winsor.release.prepaid import Receipt
from winsor.sampling.samplers import FullBatch

Array = NDArray[np.float64]

SOURCE = Path(__file__).with_name("_truncated.c")
SPLIT, SMALL = 4.0, 0.17
"""Where the pieces begin to be of 1/u; and below it f is its cubic to 1e-13."""
CUBE = 2 / 3
CHUNK = 1 << 12
"""Rows that stay near the processor between the scores and the sums."""
PIECES = (2048, 256)
DEGREE = 3


@dataclass
class TabulatedGD(RobustGD):
    """`RobustGD` with smoothing 1, its truncation read off a table."""

    def solve(self, task: LinearTask, session: Session) -> Solution:
        found = library()
        dense = isinstance(task.design.x, np.ndarray) and task.design.unit == 1.0
        if found is None or self.smoothing != 1.0 or task.design.intercept or not dense:
            return super().solve(task, session)
        self._check("scale", "learning_rate", "deviation", "radius")
        steps, trail = whole("steps", self.steps), Trail(self.record)
        scale = self.scale or self._balanced(task, session, steps)
        rate = self.learning_rate or 1 / task.smoothness()
        bound = CEILING * positive("scale", scale) * math.sqrt(task.parameters)
        sampler, sensitivity = FullBatch(task.n), Sensitivity.per_sample(bound, PROOF)
        receipt = session.pay(Payment(sampler, sensitivity, steps), task.start.shape)
        gradient = tabulated_gradients(task, scale, receipt, found)
        schedule = Schedule(steps, rate, task.alpha, self.radius)
        theta = descend(task.start, gradient, schedule, False, trail)
        return Solution(theta, steps, trajectory=tuple(trail.points))


def tabulated_gradients(
    task: LinearTask, scale: float, receipt: Receipt, found: Compiled
) -> Callable[[Array], Array]:
    """Each call releases the next noisy coordinate-wise truncated mean gradient."""
    wide = padded(task.design.x)
    # A coordinate is within the ceiling but for the rounding of the table: 1e-11 of the bound,
    # where a release is rounded to a grid far coarser than that.

    def gradient(theta: Array) -> Array:
        total = np.zeros_like(theta)
        for first in range(0, task.n, CHUNK):
            piece = slice(first, first + CHUNK)
            scores = wide[piece, : len(theta)] @ theta
            residual = _residual(task.loss, scores, task.y[piece])
            residual /= scale
            total += found.sums(wide[piece], residual)[: len(theta)]
        total *= scale
        receipt.release(total)
        total /= task.n
        return total

    return gradient


def _residual(loss: Loss, scores: Array, y: Array) -> Array:
    if not isinstance(loss, Logistic):
        return loss.residual(scores, y)
    torch.sigmoid_(torch.from_numpy(scores))  # four times as fast as scipy's
    scores -= y
    return scores


def padded(x: Array) -> Array:
    """With zeros behind the columns, up to a multiple of four: f(0) = 0."""
    wide = np.zeros((len(x), -(-x.shape[1] // 4) * 4))
    wide[:, : x.shape[1]] = x
    return wide


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
            raise OSError("the processor has no AVX2 instructions")
        self._sums = found.winsor_truncated
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._sums.argtypes = [pointer, pointer, number, number, pointer, pointer]
        self._sums.restype = number
        self._pieces = (
            pieces_of(inner, SPLIT, PIECES[0]),
            pieces_of(outer, 1 / SPLIT, PIECES[1]),
        )
        addresses = (pieces.ctypes.data for pieces in self._pieces)
        self._table = _Table(*addresses, *PIECES, SPLIT, SMALL, CUBE)

    def sums(self, wide: Array, residual: Array) -> Array:
        """sum_i f(r_i x_ij) for every column of a `padded` table."""
        out = np.empty(wide.shape[1])
        refused = self._sums(
            wide.ctypes.data,
            residual.ctypes.data,
            len(wide),
            wide.shape[1] // 4,
            ctypes.addressof(self._table),
            out.ctypes.data,
        )
        return smoothed(wide * residual[:, None], 1.0).sum(axis=0) if refused else out


@functools.cache
def library() -> Compiled | None:
    return compiled.load(SOURCE, Compiled, _agrees)


def _agrees(found: Compiled) -> bool:
    """Whether the table is the closed form, up to where that begins to cancel."""
    u = np.concatenate([np.geomspace(1e-6, 20, 1000), -np.geomspace(1e-6, 20, 780)])
    sums = np.array([found.sums(row[None], np.ones(1)) for row in u.reshape(-1, 4)])
    return bool(np.abs(sums.ravel() - smoothed(u, 1.0)).max() < 1e-11)
