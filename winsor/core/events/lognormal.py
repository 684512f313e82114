"""The law of a mean of t independent log-normals, spread outwards onto a grid.

Let X = exp(Z/s - 1/(2 s^2)), Z standard normal: the density ratio of N(1, s^2) to N(0, s^2), of
mean 1. The density ratio of one epoch of random allocation is W = (X_1 + ... + X_t) / t.

Both hockey-stick divergences of an epoch are means of convex functions of W,

    H_a(P, Q) = E_Q (W - a)+,        H_a(Q, P) = E_Q (1 - a W)+,

so whoever replaces W by a *mean-preserving spread* of it bounds both directions at once. A value
between two grid points is spread to these two, in the proportion that keeps its mean. Sums of
spreads are spreads of sums. So: spread X, add by doubling, and spread each sum anew; every step
adds about d^2/6 to a variance and nothing to a mean, where rounding up would add d to the loss.

    grid       exp(j d), j whole, and 0; the sum of two of its points is exp(i d) times a function
               of j - i only, so a convolution is one shifted product for each difference
    far below  spread between 0 and the lowest point
    far above  spread between the highest point and "infinity": the probability under Q stays, and
               the mean that is missing is probability under P of an infinite loss (`lost`)

Guarantee
---------
There is a spread of W in which the probability of every point, of 0 and of infinity is at most
(1 + ``error``) times what is computed here. Shares of a split are rounded up and what leaves the
grid is counted in full at both of its ends, so sums slightly above 1 are to be expected.

References
----------
Feldman & Shenfeld 2026 (arXiv 2602.17284) convolve log-normals on a geometric grid, rounding in
one direction for each divergence. The convex order and what follows from it are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

POINTS_PER_DEVIATION = 64
"""Grid points for one standard deviation of log X, and at least half as many for one of log W."""

MOST_POINTS = 5000
"""Of one grid. Beyond, spacing is not refined any more, which costs sharpness only."""

_UNIT = 2.0**-53
_NEAR = 1e-5  # cells; far more than the rounding of a point's place, and no loss of sharpness
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True)
class Mean:
    """The mean of ``count`` independent ratios, spread onto exp((lowest + j) spacing) and 0."""

    count: int
    spacing: float
    lowest: int
    masses: Array
    zero: float
    lost: float
    error: float

    @property
    def logs(self) -> Array:
        """Logarithms of the grid points."""
        indices = np.arange(self.lowest, self.lowest + self.masses.size)
        return np.asarray(self.spacing * indices, float)

    def deviation(self) -> float:
        """Standard deviation of log W, under the law where it is smaller."""
        return min(_deviation(self.logs, law) for law in (self.masses, self.tilted()))

    def tilted(self) -> Array:
        """Probabilities of the points under P."""
        return np.asarray(self.masses * np.exp(self.logs), float)


def _deviation(values: Array, weights: Array) -> float:
    weights = weights / weights.sum()
    centre = float(np.sum(weights * values))
    return math.sqrt(float(np.sum(weights * (values - centre) ** 2)))


@lru_cache(maxsize=32)
def mean_of(count: int, noise: float, tail: float, fineness: int = POINTS_PER_DEVIATION) -> Mean:
    """The law of W for ``count`` steps: double for each binary digit, and add one where it is 1.

    Probability of at most ``tail`` is moved to 0 (under Q) and to infinity (under P).
    """
    share = tail / (4 * count.bit_length() + 4)
    single = one(noise, share / count, fineness)
    total = single
    for digit in f"{count:b}"[1:]:
        total = _sum(total, total, _finer(total, fineness))
        total = _trimmed(total, share * total.count / count)
        if digit == "1":
            total = _trimmed(_sum(single, total, total.spacing), share * total.count / count)
    return total


def one(noise: float, tail: float, fineness: int = POINTS_PER_DEVIATION) -> Mean:
    """The law of X. Each cell's split is integrated, not the difference of two integrals."""
    spacing = 1 / (noise * fineness)
    reach = -float(special.ndtri(tail))
    lowest = math.floor((-reach / noise - 0.5 / noise**2) / spacing)
    highest = math.ceil((reach / noise + 0.5 / noise**2) / spacing)
    logs = spacing * np.arange(lowest, highest + 1)
    normals = noise * logs + 0.5 / noise  # the z at which X is a grid point
    width = spacing * noise
    masses = np.zeros(logs.size)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        part = (node + 1) / 2
        density = np.exp(-((normals[:-1] + width * part) ** 2) / 2) / math.sqrt(2 * math.pi)
        right = math.expm1(spacing * part) / math.expm1(spacing)
        left = -math.expm1(-spacing * (1 - part)) / -math.expm1(-spacing)
        masses[1:] += (weight * width / 2) * right * density
        masses[:-1] += (weight * width / 2) * left * density
    # Mean of X outside the grid: where X is the density, the normal has mean 1/s.
    below, above = float(special.ndtr(normals[0])), float(special.ndtr(-normals[-1]))
    low_mean = float(special.ndtr(normals[0] - 1 / noise))
    high_mean = float(special.ndtr(1 / noise - normals[-1]))
    masses[0] += min(below, low_mean * math.exp(-logs[0]))
    masses[-1] += above
    size = float(np.max(np.abs(normals))) + 1 / noise
    error = (64 + 4 * size * size) * _UNIT
    return Mean(1, spacing, lowest, masses, below, high_mean, error)


def _finer(mean: Mean, fineness: int) -> float:
    """The spacing of the doubled sum: a power of two finer, if its law has become narrow."""
    spacing = mean.spacing
    wanted = mean.deviation() / math.sqrt(2) / (fineness / 2)
    while spacing > wanted and mean.masses.size * mean.spacing / spacing < MOST_POINTS / 2:
        spacing /= 2
    return spacing


# ------------------------------------------------------------------------------------ convolution


@dataclass(frozen=True)
class _Moves:
    """For each difference: how far a point moves to each of the two it is spread to, and their
    shares."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    to_left: Array
    to_right: Array


def _sum(a: Mean, b: Mean, spacing: float) -> Mean:
    """The law of the mean of all ratios of ``a`` and ``b``, which are independent.

    ``a`` has the coarser grid, or the same. A product with 0, u e^x, is spread to 0 and e^x.
    """
    count = a.count + b.count
    u, v = a.count / count, b.count / count
    strides = round(a.spacing / spacing), round(b.spacing / spacing)
    lows = a.lowest * strides[0], b.lowest * strides[1]
    highs = tuple(
        low + (x.masses.size - 1) * stride
        for x, low, stride in zip((a, b), lows, strides, strict=True)
    )
    bottom = min(lows) - 2
    out = np.zeros(max(highs) + 3 - bottom)
    starts = lows[0] - bottom, lows[1] - bottom
    differences = np.arange(lows[1] - highs[0], highs[1] - lows[0] + 1, strides[1])
    _add_products(out, a, b, starts[0], strides, _moves(differences, u, v, spacing))
    out[starts[0] :: strides[0]][: a.masses.size] += u * b.zero * a.masses
    out[starts[1] :: strides[1]][: b.masses.size] += v * a.zero * b.masses
    zero = v * b.zero + u * a.zero + a.zero * b.zero
    error = a.error + b.error + (4 * differences.size + 64) * _UNIT
    return Mean(count, spacing, bottom, out, zero, u * a.lost + v * b.lost, error)


def _moves(differences: NDArray[np.int64], u: float, v: float, spacing: float) -> _Moves:
    """u e^x + v e^y = e^x (u + v e^(y-x)) = e^y (v + u e^(x-y)), measured from the larger one."""
    ahead = differences > 0
    fading = np.exp(-np.abs(differences) * spacing)
    down = np.log(np.where(ahead, v + u * fading, u + v * fading)) / spacing
    # A point that rounding could place on either side of a grid point is spread around that point.
    nearest = np.rint(down)
    near = np.abs(down - nearest) < _NEAR
    first = np.where(near, nearest - 1, np.floor(down))
    cells = np.where(near, 2, 1)
    part, width = (down - first) * spacing, cells * spacing
    margin = 16 * _UNIT * (1 - math.log(min(u, v)) / spacing)  # the rounding of ``part``
    to_right = np.expm1(part) / np.expm1(width) + margin
    to_left = np.expm1(part - width) / np.expm1(-width) + margin
    left = np.where(ahead, differences, 0) + first.astype(np.int64)
    return _Moves(left, left + cells, to_left, to_right)


def _add_products(
    out: Array, a: Mean, b: Mean, start: int, strides: tuple[int, int], moves: _Moves
) -> None:
    """out[place of (i, j)] += a_i b_j, one difference of places after another."""
    stride, ratio = strides[0], strides[0] // strides[1]
    size_a, size_b = a.masses.size, b.masses.size
    for n, begin in enumerate(range(-(size_a - 1) * ratio, size_b)):
        # The pairs of difference n: j = begin + i ratio.
        first = max(0, -(begin // ratio))
        last = min(size_a - 1, (size_b - 1 - begin) // ratio)
        if last < first:
            continue
        product = (
            a.masses[first : last + 1]
            * b.masses[begin + first * ratio :: ratio][: last - first + 1]
        )
        begin, reach = start + first * stride, (last - first) * stride + 1
        left, right = begin + int(moves.left[n]), begin + int(moves.right[n])
        out[left : left + reach : stride] += moves.to_left[n] * product
        out[right : right + reach : stride] += moves.to_right[n] * product


def _trimmed(mean: Mean, tail: float) -> Mean:
    """Without the ends: at most ``tail`` of Q to 0, at most ``tail`` of P to infinity."""
    logs, masses = mean.logs, mean.masses
    under_q = np.cumsum(masses)
    under_p = np.cumsum(mean.tilted()[::-1])[::-1]
    first = int(np.searchsorted(under_q, tail, side="right"))
    last = masses.size - 1 - int(np.searchsorted(under_p[::-1], tail, side="right"))
    last = max(last, first)
    kept = masses[first : last + 1].copy()
    low, high = masses[:first], masses[last + 1 :]
    kept[0] += float(np.sum(low * np.exp(logs[:first] - logs[first])))
    kept[-1] += float(np.sum(high))
    zero = mean.zero + float(np.sum(low))
    lost = mean.lost + float(under_p[last + 1] if high.size else 0.0)
    error = mean.error + (masses.size + 64) * _UNIT
    return Mean(mean.count, mean.spacing, mean.lowest + first, kept, zero, lost, error)
