"""Shape functions without the part that chance explains: post-processing of what was released.

    basis    for the heights of a term, orthonormal under its masses: constant, line, then waves of
             rising frequency; for a pair, the products
    blocks   frequencies 1, 2 to 3, 4 to 7, ... of a term; of a pair, products of blocks
    shrink   every block to the share of it that chance and a penalty do not explain (`kept_share`)
    penalty  the largest variance in the block over their sum, to the power `GAMMA`, times chance;
             none on a feature that has a line alone

In dyadic blocks this is within a constant of the best estimate at any smoothness (Cai 1999), and
with the penalty about as good as if the smoothness were known (Cavalier & Tsybakov 2002). Chance is
the noise of the releases and the randomness of rows. The level stays where it was.

Rows between two knots tell the knots apart badly, and the released overlaps of tents say how much,
along every principal direction of a term. Features are taken for uncorrelated: where they are not,
shapes are shrunk too little rather than too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.tables.additive.terms import Design, Term
from winsor.tables.linear.metric import kept_share

Array = NDArray[np.float64]


GAMMA = 0.25
"""Exponent of the penalty on small blocks; between 0 and 1/2."""
LEAST = 0.25
"""Mean squares along a direction are at least this share of what rows at the knots would make them:
a third where rows are even between knots. Of a line, a third of this: few are near its ends."""


@dataclass(frozen=True)
class Chance:
    """What descent and rows do along the principal directions of terms, of curvature l (of the
    design, not the loss)."""

    noise: Array
    """(size,) variance along each by the noise of releases."""
    reached: Array
    """(size,) how much of the way to the optimum was gone, between 0 and 1."""
    rows: float
    """Variance of the optimum along one with l = 1, by the randomness of rows."""


def curvatures(design: Design) -> Array:
    """Return (size,) the curvature of the design along each principal direction, by masses and
    overlaps; 1 of the intercept."""
    parts = [_principal(term)[0] for term in design.terms]
    return np.concatenate([*parts, np.ones(1)])


def _principal(term: Term) -> tuple[Array, Array]:
    """Curvatures of a term in ascending order, and the directions (width, width) they are of."""
    if term.straight:  # about its mean, which the intercept takes
        most = math.prod(term.masses[0].tolist())
        shared = float(term.overlaps[0][0]) if term.overlaps else 0.0
        return np.array([term.weight**2 * max(most - shared, LEAST * most / 3)]), np.ones((1, 1))
    square: Array = np.ones((1, 1))
    for place, mass in enumerate(term.masses):
        own = _mean_square(mass, term.overlaps[place : place + 1])
        square = np.asarray(np.kron(square, own), np.float64)
    values, directions = np.linalg.eigh(term.weight**2 * square)
    return values, directions


def _mean_square(mass: Array, overlaps: tuple[Array, ...]) -> Array:
    """The mean of tents times tents over rows; a row's tents add up to 1, hence its rows to
    masses."""
    if not overlaps:
        return np.diag(mass)
    beside, root = overlaps[0], np.sqrt(mass)
    own = mass - np.append(beside, 0.0) - np.append(0.0, beside)
    square = np.diag(own) + np.diag(beside, 1) + np.diag(beside, -1)
    values, vectors = np.linalg.eigh(square / np.outer(root, root))
    vectors = root[:, None] * vectors
    return np.asarray((vectors * np.maximum(values, LEAST)) @ vectors.T)


def _mass(term: Term) -> Array:
    """Expected share of rows per parameter, assuming independent features."""
    mass = term.masses[0]
    for other in term.masses[1:]:
        mass = np.outer(mass, other).ravel()
    return mass


def shrunk(design: Design, parameters: Array, chance: Chance) -> Array:
    """Return the ``parameters`` (size, outputs) of ``design`` without what chance explains."""
    along = np.maximum(curvatures(design), 1e-12)
    variance = chance.noise + chance.reached**2 * chance.rows / along
    kept = parameters.copy()
    for start, term in zip(design.starts, design.terms, strict=False):
        own = slice(start, start + term.width)
        kept[own] = _shrunk(term, parameters[own], variance[own])
        if term.straight:  # its column is centred at 1/2, where the rows are not
            lost = (parameters[own] - kept[own])[0]
            kept[-1] += term.weight * (term.masses[0][1] - 0.5) * lost
    return kept


def _shrunk(term: Term, part: Array, variance: Array) -> Array:
    if term.straight:
        return part * kept_share(np.sum(part**2, axis=0), variance.sum())
    mass = _mass(term)
    basis, blocks = _basis(term)
    coefficients = basis.T @ (mass[:, None] * part)
    _, directions = _principal(term)
    chances = ((directions.T @ (mass[:, None] * basis)) ** 2).T @ variance
    factors = np.ones_like(coefficients)
    for block in np.unique(blocks[blocks > 0]):
        own = blocks == block
        squares = np.sum(coefficients[own] ** 2, axis=0)
        factors[own] = kept_share(squares, _with_penalty(chances[own]))
    return part - basis @ ((1 - factors) * coefficients)


def _with_penalty(chances: Array) -> float:
    """What a block must exceed whose coordinates have these variances by chance."""
    total = float(chances.sum())
    return total * (1 + (float(chances.max()) / max(total, 1e-300)) ** GAMMA)


def _basis(term: Term) -> tuple[Array, NDArray[np.int64]]:
    """(width, width) functions at the knots, orthonormal under the masses, and the block of each:
    0 for the constant."""
    own = [_waves(knots, mass) for knots, mass in zip(term.knots, term.masses, strict=True)]
    basis, blocks = own[0]
    for other, more in own[1:]:
        basis = np.asarray(np.kron(basis, other), np.float64)
        blocks = (blocks[:, None] * 64 + more[None, :]).ravel()
    return basis, blocks


def _waves(knots: Array, mass: Array) -> tuple[Array, NDArray[np.int64]]:
    """A constant, a line and waves in the ranks, of one feature."""
    count = len(knots)
    ranks = np.cumsum(mass) - mass / 2
    waves = np.cos(np.pi * np.outer(ranks, np.arange(1, count - 1)))
    raw = np.column_stack([np.ones(count), knots - mass @ knots, waves])
    raw /= np.sqrt(mass @ raw**2)
    root = np.sqrt(mass)
    orthogonal, _ = np.linalg.qr(root[:, None] * raw)
    frequencies = np.arange(count)
    blocks = np.where(frequencies > 0, np.log2(np.maximum(frequencies, 1)).astype(np.int64) + 1, 0)
    return orthogonal / root[:, None], blocks
