"""Shape functions without the part that chance explains: post-processing of what was released.

    basis    of the heights of a term, orthonormal under its masses: constant, line, then waves of
             rising frequency; of a pair, the products
    blocks   frequencies 1, 2 to 3, 4 to 7, ... of a term; of a pair, products of blocks
    shrink   every block to the share of it that chance does not explain
             (`winsor/linear/shrinkage.py`)

In dyadic blocks this is within a constant of the best estimate at any smoothness (Cai 1999). Chance
is both the noise of the releases and the randomness of rows: in a table of little signal the second
is what bends shapes, at any epsilon. Constants are not touched: the level stays where it was.

Variances are those of features that are not correlated, at knots that share no rows. Where they
are and do (the roughest of waves then vary three times as much), chance is larger than it is taken
for here, and shapes are shrunk too little rather than too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.additive.terms import Design, Term
from winsor.linear.shrinkage import kept_share

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """What descent and rows do along a parameter of curvature l (of the design, not the loss)."""

    noise: Array
    """(size,) variance of each parameter by the noise of releases."""
    reached: Array
    """(size,) how much of the way to the optimum was gone, between 0 and 1."""
    rows: float
    """Variance of the optimum of a parameter with l = 1, by the randomness of rows."""


def curvatures(design: Design) -> Array:
    """(size,) the curvature of the design along each parameter, by the masses; 1 of the
    intercept."""
    parts = [_curvatures(term) for term in design.terms]
    return np.concatenate([*parts, np.ones(1)])


def _curvatures(term: Term) -> Array:
    if term.straight:  # about its mean, which the intercept takes
        return np.array([term.weight**2 * math.prod(term.masses[0])])
    return term.weight**2 * _mass(term)


def _mass(term: Term) -> Array:
    """Of every parameter, features taken for independent."""
    mass = term.masses[0]
    for other in term.masses[1:]:
        mass = np.outer(mass, other).ravel()
    return mass


def shrunk(design: Design, parameters: Array, chance: Chance) -> Array:
    """The ``parameters`` (size, outputs) of ``design`` without what chance explains."""
    along = np.maximum(curvatures(design), 1e-12)
    variance = chance.noise + chance.reached**2 * chance.rows / along
    kept = parameters.copy()
    for start, term in zip(design.starts, design.terms, strict=False):
        own = slice(start, start + term.width)
        kept[own] = _shrunk(term, parameters[own], variance[own])
    return kept


def _shrunk(term: Term, part: Array, variance: Array) -> Array:
    if term.straight:
        return part * kept_share(np.sum(part**2, axis=0), variance.sum())
    mass = _mass(term)
    basis, blocks = _basis(term)
    coefficients = basis.T @ (mass[:, None] * part)
    chances = (basis**2).T @ (mass**2 * variance)
    factors = np.ones_like(coefficients)
    for block in np.unique(blocks[blocks > 0]):
        own = blocks == block
        factors[own] = kept_share(np.sum(coefficients[own] ** 2, axis=0), chances[own].sum())
    return part - basis @ ((1 - factors) * coefficients)


def _basis(term: Term) -> tuple[Array, NDArray[np.int64]]:
    """(width, width) functions at the knots, orthonormal under the masses, and the block of each:
    0 for the constant."""
    own = [_waves(knots, mass) for knots, mass in zip(term.knots, term.masses, strict=True)]
    basis, blocks = own[0]
    for other, more in own[1:]:
        basis = np.asarray(np.kron(basis, other), dtype=np.float64)
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
