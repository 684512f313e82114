"""How many rows each hat has, released once for all features: which knots to keep, and weights.

    release   sum_i hat_k(x_ij) for every feature j and knot k, plus N(0, s^2)

Guarantee
---------
The hats of a feature are non-negative and add up to 1: the vector of p features moves by at most
sqrt(p) when a record joins or leaves, sqrt(2p) when it becomes another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from winsor.additive.knots import Hats
from winsor.additive.terms import Term
from winsor.contract import Sensitivity
from winsor.mechanisms.gaussian import Gaussian
from winsor.release.prepaid import PrepaidDoor
from winsor.sampling.samplers import FullBatch

Array = NDArray[np.float64]

_SEEN = 2.0  # standard deviations of noise above which a knot counts as used
PROOF = "hats of p features: non-negative, adding up to 1 in each (sqrt(p) in L2)"


def sensitivity(features: int) -> Sensitivity:
    return Sensitivity(math.sqrt(features) * (1 + 1e-9), math.sqrt(2 * features), PROOF)


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
    receipt = door.pay(mechanism, FullBatch(n), sensitivity(features), 1, (features, width))
    released = receipt.release(hats(knots, width))
    terms = []
    for feature, own in enumerate(knots):
        kept = released[feature, : len(own)] > _SEEN * receipt.std
        if kept.sum() > 1:
            masses = released[feature, : len(own)][kept]
            terms.append(Term((feature,), (own[kept],), (masses / masses.sum(),)))
    return terms


def hat_sums(table: Array, knots: Sequence[Array], width: int) -> Array:
    """(features, width) sums of the hats of every feature over rows."""
    counts = np.zeros((len(knots), width))
    for feature, own in enumerate(knots):
        if len(own) > 1:
            counts[feature, : len(own)] = Hats(own).sums(table[:, feature])
    return counts
