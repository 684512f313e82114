"""The tables of lattice noise, computed in whole numbers: the same on every machine.

A law on the lattice is a symmetric density cut into cells of width h = 2^-5 standard units. Cell
b >= 0 of either sign covers [b h, (b + 1) h); a lattice point is a slot of a cell. Densities fall
away from zero, so a cell is a rectangle as high as its outer edge, and a wedge on top of it:

    flat    2^14 equally likely indices, of which a cell owns as many as fit into its rectangle;
            slots are equally likely
    rest    what is left of the rectangles: slots are equally likely
    wedge   slot = the smaller of two (a triangle), accepted with probability
            (density - density at the outer edge) / (steepest slope * distance to that edge)

Rest and wedge are 2 % together, the *residual*; they are chosen by their exact masses. Masses come
from series in fixed point with 320 bits, rounded once: to multiples of 2^-64 of the band they are
chosen in. Cells far out are chosen in bands, each reached through the one before, so that no cell
is rarer than 2^-14 of its band and rounding moves no part by more than 2^-50 of its cell.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

FRACTION = 320
ONE = 1 << FRACTION
INDEX_BITS = 14
CELL_BITS = 5
"""Cells per standard unit, as a power of two."""
RAREST = 1 << 50
"""A cell's share of its band, at least, of 2^64."""
WORD = 1 << 64


@dataclass(frozen=True)
class Law:
    """One law, as the pure path and the kernel read it. Arrays must not be changed."""

    name: str
    flat: np.ndarray
    """(2^14,) signed cell of an index, as float64; zero from ``residual_from`` on."""
    residual_from: int
    slope: np.ndarray
    """(cells,) x in density(inner edge + t) / density(inner edge) = exp(-t (x + curve t))."""
    curve: float
    edge: np.ndarray
    """(cells,) density at the outer edge over density at the inner edge."""
    steep: np.ndarray
    """(cells,) steepest slope of that ratio, rounded up, times 2^-53."""
    alias_bits: int
    alias_limit: np.ndarray
    """(2^alias_bits,) uint64: the remaining bits of the word below it keep the column."""
    alias_symbol: np.ndarray
    """(2, 2^alias_bits) int64: the symbol kept, and the symbol otherwise. A symbol is twice the
    cell, plus one for the wedge; -1 says further out."""
    band_start: np.ndarray
    """(bands + 1,) int64: outer bands are symbols [start[j], start[j + 1])."""
    band_upto: np.ndarray
    """(symbols,) uint64: cumulative counts inside each outer band, less one."""
    masses: tuple[int, ...]
    """Exact masses of the cells of one sign, of 2^320."""
    outside: float
    """Mass beyond the last cell, both signs, rounded up."""

    @property
    def reach(self) -> float:
        """Upper end of the cells of the table, in units of the scale."""
        return len(self.slope) / 2**CELL_BITS


@functools.cache
def gaussian() -> Law:
    """The standard normal law, to 13 standard deviations."""
    count = 13 * 2**CELL_BITS
    densities, masses = _gaussian_cells(count)
    slope = np.arange(count, dtype=np.float64) / 2**CELL_BITS
    # x exp(-x^2/2) rises to x = 1, an edge, and falls from there
    steepest = [max(b * a, (b + 1) * e) / (a << CELL_BITS) for b, (a, e) in _edges(densities)]
    outside = 2.0 * math.exp(-(13.0**2) / 2) / (13.0 * math.sqrt(2 * math.pi))
    return _law("gaussian", densities, masses, slope, 0.5, steepest, outside)


@functools.cache
def laplace() -> Law:
    """Density exp(-|x|)/2, to 96 scales."""
    count = 96 * 2**CELL_BITS
    step = _exp(-(ONE >> CELL_BITS))
    densities = [ONE >> 1]
    for _ in range(count):
        densities.append(densities[-1] * step >> FRACTION)
    masses = [a - b for a, b in itertools.pairwise(densities)]
    slope = np.ones(count)
    return _law("laplace", densities, masses, slope, 0.0, [1.0] * count, math.exp(-95.99))


def _edges(densities: list[int]) -> list[tuple[int, tuple[int, int]]]:
    return list(enumerate(itertools.pairwise(densities)))


LAWS = {"gaussian": gaussian, "laplace": laplace}


def _law(
    name: str,
    densities: list[int],
    masses: list[int],
    slope: np.ndarray,
    curve: float,
    steepest: list[float],
    outside: float,
) -> Law:
    """``densities`` at the edges of the cells (one more than cells), of 2^320; ``steepest`` slopes
    relative to the density at the inner edge."""
    count = len(masses)
    shares = [d >> (FRACTION - INDEX_BITS + CELL_BITS) for d in densities[1:]]
    cells = [c for b, share in enumerate(shares) for c in [b, -b - 1] * share]
    flat = np.zeros(1 << INDEX_BITS)
    flat[: len(cells)] = cells
    unit = ONE >> INDEX_BITS
    rectangle = [d >> CELL_BITS for d in densities[1:]]
    parts = zip(rectangle, shares, masses, strict=True)
    residual = [p for r, share, m in parts for p in (r - share * unit, m - r)]
    edge = np.array([b / a for a, b in itertools.pairwise(densities)])
    starts = [2 * start for start in _bands(residual, masses)]
    limit, choice = _alias([*residual[: starts[0]], sum(residual[starts[0] :])])
    upto = np.zeros(2 * count, dtype=np.uint64)
    for first, last in itertools.pairwise(starts):
        beyond = [sum(residual[last:])] if last < 2 * count else []
        whole = _rounded([*residual[first:last], *beyond])
        total = 0
        for symbol in range(first, last):
            total += whole[symbol - first]
            upto[symbol] = max(0, total - 1)
    return Law(
        name=name,
        flat=flat,
        residual_from=len(cells),
        slope=slope,
        curve=curve,
        edge=edge,
        steep=np.array([(d * (1 + 2.0**-50)) * 2.0**-53 for d in steepest]),
        alias_bits=len(limit).bit_length() - 1,
        alias_limit=limit,
        alias_symbol=choice,
        band_start=np.array(starts, dtype=np.int64),
        band_upto=upto,
        masses=tuple(masses),
        outside=outside,
    )


def _bands(residual: list[int], masses: list[int]) -> list[int]:
    """Cells at which bands begin, the inner one left out; the number of cells ends the list."""
    starts, first = [], 0
    while first < len(masses):
        total, last = sum(residual[2 * first :]), first
        while last < len(masses) and masses[last] * WORD >= RAREST * total:
            last += 1
        starts.append(last)
        first = last
    return starts if len(starts) > 1 else [*starts, len(masses)]


def _rounded(masses: list[int]) -> list[int]:
    """Whole numbers that add up to 2^64, each within one of its share."""
    total, seen, before, out = sum(masses), 0, 0, []
    for mass in masses:
        seen += mass
        upto = seen * WORD // total
        out.append(upto - before)
        before = upto
    return out


def _alias(masses: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Walker's tables in whole numbers: exact for masses that are multiples of 2^-64. The last
    mass stands for everything further out: symbol -1."""
    bits = max(1, (len(masses) - 1).bit_length())
    size = 1 << bits
    height = WORD >> bits
    left = [*_rounded(masses), *[0] * (size - len(masses))]
    names = [*range(len(masses) - 1), *[-1] * (size - len(masses) + 1)]
    limit = np.zeros(size, dtype=np.uint64)
    choice = np.array([names, names], dtype=np.int64)
    small = [i for i in range(size) if left[i] < height]
    large = [i for i in range(size) if left[i] >= height]
    while small:
        i, j = small.pop(), large[-1]
        limit[i] = left[i]
        choice[1, i] = names[j]
        left[j] -= height - left[i]
        if left[j] < height:
            small.append(large.pop())
    for j in large:
        limit[j] = left[j]  # the whole column
    return limit, choice


def _gaussian_cells(count: int) -> tuple[list[int], list[int]]:
    """Densities at b h for b = 0..count, and masses of [b h, (b + 1) h)."""
    root = math.isqrt(2 * _pi() << FRACTION)
    ratio = _exp(-(ONE >> (2 * CELL_BITS + 1)))  # exp(-h^2/2)
    square, factor = ratio * ratio >> FRACTION, ratio
    densities = [(ONE << FRACTION) // root]
    for _ in range(count):
        densities.append(densities[-1] * factor >> FRACTION)
        factor = factor * square >> FRACTION
    masses = [d * _hermite_integral(b) >> FRACTION for b, d in enumerate(densities[:-1])]
    return densities, masses


def _hermite_integral(cell: int) -> int:
    """Integral over t in [0, h] of exp(-x t - t^2/2), x = cell h: sum of (-1)^n He_n(x) h^(n+1) /
    (n+1)!. With c_n = (-h)^n He_n(x) / n!: (n + 1) c_(n+1) = -h x c_n - h^2 c_(n-1)."""
    before, now, total, n = 0, ONE, 0, 0
    while n < 80:
        total += now // (n + 1)
        nxt = -(cell * now >> (2 * CELL_BITS)) - (before >> (2 * CELL_BITS))
        before, now, n = now, nxt // (n + 1), n + 1
    return total >> CELL_BITS


def _exp(x: int) -> int:
    """exp of a fixed-point number of size at most one."""
    term, total, n = ONE, 0, 0
    while term not in (0, -1):
        total += term
        n += 1
        term = (term * x >> FRACTION) // n
    return total


def _pi() -> int:
    """Machin: pi = 16 atan(1/5) - 4 atan(1/239)."""

    def arctan(inverse: int) -> int:
        term = total = (ONE << 32) // inverse
        n, sign = 1, 1
        while term:
            term //= inverse * inverse
            n, sign = n + 2, -sign
            total += sign * (term // n)
        return total >> 32

    return 16 * arctan(5) - 4 * arctan(239)
