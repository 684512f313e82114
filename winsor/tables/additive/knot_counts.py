"""How many rows each hat has and shares with the next, released once for all features: which knots
to keep, weights, and how well rows tell neighbouring knots apart.

    release   sum_i hat_k(x_ij)                                for every feature j and knot k
              `SHARED` sum_i hat_k(x_ij) hat_k+1(x_ij)         plus N(0, s^2)

The products cost nothing: a row between two knots moves the hats by less than one that stands at a
knot, and by as much less as the products then move.

Guarantee
---------
A row has two hats of a feature, w and 1 - w, and one product q = w (1 - w) <= 1/4. Their squares
add up to 1 - 2 q + SHARED^2 q^2 <= 1, for SHARED^2 q <= 2. So the vector of p features moves by at
most sqrt(p) when a record joins or leaves; and as nothing in it is negative, by at most sqrt(2p)
when one becomes another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.additive.knots import Hats
from winsor.tables.additive.terms import Term

Array = NDArray[np.float64]

SHARED = 2.8
"""What products are multiplied by: at most sqrt(8), with room for rounding."""
EVEN = 1 / 6
"""The mean of w (1 - w) of rows that are even between two knots."""

_SEEN = 2.0  # standard deviations of noise above which a knot counts as used
PROOF = "hats w, 1 - w of p features and 2.8 w (1 - w): no longer than 1 in each (sqrt(p) in L2)"


def sensitivity(features: int) -> Sensitivity:
    slack = 1 + 1e-9
    return Sensitivity(math.sqrt(features) * slack, math.sqrt(2 * features) * slack, PROOF)


def main_effects(
    hats: Callable[[Sequence[Array], int], Array],
    n: int,
    knots: Sequence[Array],
    door: PrepaidDoor,
    mechanism: Gaussian,
) -> list[Term]:
    """A term for every feature with at least two knots in use; ``hats`` says what `hat_sums` would
    of all ``n`` rows."""
    features = len(knots)
    width = max(2, *map(len, knots)) if features > 1 else max(2, len(knots[0]))
    shape = features, 2 * width - 1
    receipt = door.pay(mechanism, FullBatch(n), sensitivity(features), 1, shape)
    released = receipt.release(hats(knots, width))
    terms = []
    for feature, own in enumerate(knots):
        counts, shared = released[feature, : len(own)], released[feature, width:]
        kept = np.flatnonzero(counts > _SEEN * receipt.std)
        if len(kept) > 1:
            masses, overlaps = counts[kept], _overlaps(counts, shared / SHARED, kept)
            total = masses.sum()
            terms.append(Term((feature,), (own[kept],), (masses / total,), (overlaps / total,)))
    return terms


def _overlaps(counts: Array, shared: Array, kept: NDArray[np.intp]) -> Array:
    """Of neighbours among the knots that are ``kept``; rows about a knot that is not are few, and
    taken for even."""
    left, right = kept[:-1], kept[1:]
    even = EVEN * (counts[left] + counts[right]) / 2
    return np.where(right == left + 1, np.maximum(shared[left], 0.0), even)


def hat_sums(table: Array, knots: Sequence[Array], width: int) -> Array:
    """(features, 2 width - 1) sums over rows: the hats of every feature, then the products."""
    sums = np.zeros((len(knots), 2 * width - 1))
    for feature, own in enumerate(knots):
        if len(own) > 1:
            hats, products = Hats(own).sums(table[:, feature])
            sums[feature, : len(own)] = hats
            sums[feature, width : width + len(products)] = SHARED * products
    return sums
