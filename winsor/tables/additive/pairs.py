"""Which pairs of features interact: residual sums over coarse cells, all pairs in one release.

    candidates   pairs of the features with the largest main effects
    release      sum of clipped residuals in each of about 4 x 4 cells, every pair, plus N(0, s^2)
    score        sum of squares of the table without its row and column means, in units of the
                 noise and of the rows' own randomness, against chi-squared

Guarantee
---------
A record adds its residual, of length at most c, to one cell of each of P pairs: sensitivity
c sqrt(P) when it joins or leaves, twice that when it is replaced. Candidates come from released
shape functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from winsor.core.arithmetic.rows import sum_weights
from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.additive.knots import Tents
from winsor.tables.additive.terms import Design, Term

Array = NDArray[np.float64]
Pair = tuple[int, int]

CELLS = 4
CANDIDATES = 6
"""Features whose pairs are looked at: 15 pairs instead of p (p - 1) / 2."""
_CLEAR = -float(norm.logsf(3.0))  # one in a thousand, for each of 15 pairs
PROOF = "clipped residuals in one cell of each pair"


def sensitivity(pairs: int, clip: float) -> Sensitivity:
    """Return how far a row moves the residual sums of so many ``pairs``."""
    return Sensitivity.per_sample(clip * math.sqrt(max(pairs, 1)), PROOF)


def candidates(design: Design, parameters: Array) -> list[Pair]:
    """Return pairs of the terms whose shape functions vary most."""
    strengths = []
    for term, part in zip(design.terms, design.parts(parameters), strict=True):
        heights, mass = term.heights(part), term.masses[0]
        centred = heights - mass @ heights
        strengths.append(float((mass @ centred**2).sum()))
    first = np.argsort(strengths)[::-1][:CANDIDATES]
    return [(int(a), int(b)) for a, b in combinations(sorted(first.tolist()), 2)]


def coarse(term: Term) -> Array:
    """Return inner edges of about `CELLS` cells of equal mass."""
    knots, masses = term.knots[0], term.masses[0]
    if len(knots) <= CELLS:
        return (knots[:-1] + knots[1:]) / 2
    reached = np.cumsum(masses) - masses / 2
    return np.unique(np.interp(np.arange(1, CELLS) / CELLS, reached, knots))


@dataclass(frozen=True)
class Residuals:
    """Residuals of ``n`` rows and ``outputs`` scores, cut at ``clip``; ``spread`` is about their
    deviation."""

    n: int
    outputs: int
    clip: float
    spread: float


def pair_sums(table: Array, design: Design, pairs: Sequence[Pair], cut: Array) -> Array:
    """Return (pairs, outputs, cells) sums of the residuals ``cut`` in the cells of every pair."""
    codes = {
        number: np.searchsorted(coarse(design.terms[number]), table[:, feature], side="right")
        for number in {number for pair in pairs for number in pair}
        for feature in design.terms[number].features
    }
    outputs = cut.shape[1]
    sums = np.zeros((max(len(pairs), 1), outputs, CELLS * CELLS))
    for place, (one, other) in enumerate(pairs):
        cell = codes[one] * CELLS + codes[other]
        for output in range(outputs):
            sums[place, output] = sum_weights(cell, cut[:, output], CELLS * CELLS)
    return sums


def interacting(
    sums: Array,
    design: Design,
    pairs: Sequence[Pair],
    residuals: Residuals,
    most: int,
    door: PrepaidDoor,
    mechanism: Gaussian,
) -> list[Pair]:
    """Return at most ``most`` of the ``pairs`` of terms whose score is clearly not noise, best
    first.

    ``sums`` are the `pair_sums` of all rows."""
    n, outputs = residuals.n, residuals.outputs
    paid = sensitivity(len(pairs), residuals.clip)
    receipt = door.pay(mechanism, FullBatch(n), paid, 1, sums.shape)
    released = receipt.release(sums)
    scores = []
    for place, (one, other) in enumerate(pairs):
        sizes = len(coarse(design.terms[one])) + 1, len(coarse(design.terms[other])) + 1
        chance = math.hypot(receipt.std, residuals.spread * math.sqrt(n / math.prod(sizes)))
        scores.append(_score(released[place].reshape(outputs, CELLS, CELLS) / chance, sizes))
    best = sorted(range(len(pairs)), key=lambda place: -scores[place])[:most]
    return [pairs[place] for place in best if scores[place] > _CLEAR]


def _score(tables: Array, sizes: tuple[int, int]) -> float:
    """Minus the logarithm of the chance of so large a sum of squares without interaction. Two
    indicators have one degree of freedom, whose squares are often large."""
    rows, columns = sizes
    used = tables[:, :rows, :columns]
    freedom = len(used) * (rows - 1) * (columns - 1)
    left = used - used.mean(1, keepdims=True) - used.mean(2, keepdims=True)
    left = left + used.mean((1, 2), keepdims=True)
    return -float(chi2.logsf(np.sum(left**2), freedom)) if freedom else 0.0


def interaction(one: Term, other: Term, knots: int) -> Term:
    """Return the pair as a term, on about ``knots`` knots of each of its features."""
    coarser = [_thinned(term, knots) for term in (one, other)]
    features, (first, second) = (one.features[0], other.features[0]), coarser
    return Term(features, *((one, two) for one, two in zip(first, second, strict=True)))


def _thinned(term: Term, knots: int) -> tuple[Array, Array, Array]:
    """Knots, masses and overlaps, as if rows stood at the knots there were."""
    own, masses = term.knots[0], term.masses[0]
    if len(own) <= knots:
        return own, masses, term.overlaps[0] if term.overlaps else np.zeros(len(own) - 1)
    kept = np.unique(np.round(np.linspace(0, len(own) - 1, knots)).astype(int))
    nearest = np.abs(own[:, None] - own[kept]).argmin(axis=1)
    left, share = Tents(own[kept]).places(own)
    overlaps = np.bincount(left, masses * share * (1 - share), len(kept) - 1)
    counted = np.bincount(nearest, masses, len(kept))
    return own[kept], counted.astype(np.float64), overlaps.astype(np.float64)
