"""The terms of an additive model as columns of a sparse design whose rows have a known length.

    main effect   tents of one feature, each times w              |row part| <= w
    of two knots  one column w (t - 1/2), t in [0, 1]             |row part| <= w/2
    interaction   products of the tents of two features, times w  |row part| <= w
    intercept     1

Weights decide who gets how much of the noise. With m effective knots (1 / sum of squared masses)
the noise of a term's prediction is about m / w times the row's length; the sum over terms is least
at w^2 = m. Then every column has about unit curvature, and descent needs no other preconditioner.

Which knots to keep, and how well rows tell neighbouring knots apart, comes from one release:

    sum_i tent_k(x_ij),  `SHARED` sum_i tent_k(x_ij) tent_k+1(x_ij)    of every feature j and knot k

Guarantee
---------
Tents are non-negative and add up to 1, so do their products: a row's squares add up to at most 1 in
every term. Its whole length is at most `Design.reach`, whatever its values.

Counts: a row has two tents of a feature, w and 1 - w, and one product q = w (1 - w) <= 1/4. Their
squares add up to 1 - 2 q + SHARED^2 q^2 <= 1, for SHARED^2 q <= 2: the products cost nothing. So
the vector of p features moves by at most sqrt(p) when a record joins or leaves; and as nothing in
it is negative, by at most sqrt(2p) when one becomes another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.additive.knots import Tents

Array = NDArray[np.float64]
Columns = list[tuple[NDArray[np.int64], Array]]


@dataclass(frozen=True)
class Term:
    """One or two features on their knots. ``masses``: about what share of the rows each tent has;
    ``overlaps``: the mean over rows of the product of neighbouring tents, one less than there are
    knots, or none at all where every row stands at a knot."""

    features: tuple[int, ...]
    knots: tuple[Array, ...]
    masses: tuple[Array, ...]
    overlaps: tuple[Array, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """How many knots each feature has."""
        return tuple(len(each) for each in self.knots)

    @property
    def straight(self) -> bool:
        """Two knots: a line, for which one centred column is enough."""
        return self.shape == (2,)

    @property
    def width(self) -> int:
        """Number of columns of the design."""
        return 1 if self.straight else math.prod(self.shape)

    @property
    def effective(self) -> float:
        """Effective number of knots, between 1 and all of them."""
        return math.prod(1 / float(np.sum(each**2)) for each in self.masses)

    @property
    def weight(self) -> float:
        """What tent functions are multiplied by."""
        return math.sqrt(self.effective * (2 if self.straight else 1))

    @property
    def square(self) -> float:
        """Largest squared length of a row's part."""
        return self.weight**2 / (4 if self.straight else 1)

    @property
    def curvature(self) -> float:
        """Approximate largest eigenvalue of the term's mean square."""
        if self.straight:
            return self.square
        return self.weight**2 * math.prod(float(each.max()) for each in self.masses)

    def columns(self, table: Array) -> Columns:
        """Return (number of the column, value) of every row's non-zero entries, weight included."""
        if self.straight:
            left, share = Tents(self.knots[0]).places(table[:, self.features[0]])
            return [(np.zeros_like(left), self.weight * (share - 0.5))]
        parts: Columns = [(np.zeros(len(table), np.int64), np.full(len(table), self.weight))]
        for feature, knots in zip(self.features, self.knots, strict=True):
            left, share = Tents(knots).places(table[:, feature])
            parts = [
                (number * len(knots) + left + after, value * part)
                for number, value in parts
                for after, part in ((0, 1 - share), (1, share))
            ]
        return parts

    def heights(self, parameters: Array) -> Array:
        """Return values at the knots, of ``parameters`` (width, outputs)."""
        if self.straight:
            return self.weight * np.array([[-0.5], [0.5]]) * parameters
        return (self.weight * parameters).reshape(*self.shape, -1)


@dataclass(frozen=True)
class Design:
    """All terms and an intercept, which comes last."""

    terms: tuple[Term, ...]

    @property
    def starts(self) -> list[int]:
        """Number of the first column of each term, and of the intercept."""
        return np.cumsum([0, *(term.width for term in self.terms)]).tolist()

    @property
    def size(self) -> int:
        """Number of columns."""
        return self.starts[-1] + 1

    @property
    def reach(self) -> float:
        """The largest length of a row."""
        return math.sqrt(1.0 + math.fsum(term.square for term in self.terms))

    @property
    def curvature(self) -> float:
        """A bound on the largest eigenvalue of the mean of x x', given the masses."""
        return 1.0 + math.fsum(term.curvature for term in self.terms)

    def rows(self, table: Array) -> sparse.csr_array:
        """Return (n, size) design of ``table``."""
        n = len(table)
        numbers, values = [], []
        for start, term in zip(self.starts, self.terms, strict=False):
            for number, value in term.columns(table):
                numbers.append(start + number)
                values.append(value)
        numbers.append(np.full(n, self.size - 1, np.int64))
        values.append(np.ones(n))
        each = len(numbers)
        flat = np.stack(numbers, 1).ravel(), np.stack(values, 1).ravel()
        return sparse.csr_array((flat[1], flat[0], np.arange(n + 1) * each), shape=(n, self.size))

    def centred(self, steps: Array) -> Array:
        """Return changes of the parameters without a constant part in any term: the intercept's
        work."""
        steps = steps.copy()
        for start, term in zip(self.starts, self.terms, strict=False):
            if not term.straight:
                part = steps[start : start + term.width]
                part -= part.mean(axis=0)
        return steps

    def parts(self, parameters: Array) -> list[Array]:
        """Return the parameters of each term."""
        return [
            parameters[start : start + term.width]
            for start, term in zip(self.starts, self.terms, strict=False)
        ]

    def carried(self, parameters: Array, terms: Sequence[Term]) -> tuple[Design, Array]:
        """Return the design with further ``terms``, and its parameters: new ones start at zero."""
        more = Design((*self.terms, *terms))
        fresh = np.zeros((more.size - self.size, parameters.shape[1]))
        return more, np.concatenate([parameters[:-1], fresh, parameters[-1:]])


SHARED = 2.8
"""What products are multiplied by: at most sqrt(8), with room for rounding."""
EVEN = 1 / 6
"""The mean of w (1 - w) of rows that are even between two knots."""

_SEEN = 2.0  # standard deviations of noise above which a knot counts as used
PROOF = "tents w, 1 - w of p features and 2.8 w (1 - w): no longer than 1 in each (sqrt(p) in L2)"


def knot_sensitivity(features: int) -> Sensitivity:
    """Return how far a row moves `tent_sums` of so many ``features``."""
    return Sensitivity(math.sqrt(features), math.sqrt(2 * features), PROOF)


def main_effects(
    tents: Callable[[Sequence[Array], int], Array],
    n: int,
    knots: Sequence[Array],
    door: PrepaidDoor,
    mechanism: Gaussian,
) -> list[Term]:
    """Return a term for every feature with at least two knots in use; ``tents`` says what
    `tent_sums` would of all ``n`` rows."""
    features = len(knots)
    width = max(2, *map(len, knots)) if features > 1 else max(2, len(knots[0]))
    shape = features, 2 * width - 1
    receipt = door.pay(mechanism, FullBatch(n), knot_sensitivity(features), 1, shape)
    released = receipt.release(tents(knots, width))
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
    """Overlaps of neighbours among the knots that are ``kept``; rows about a knot that is not are
    few, and taken for even."""
    left, right = kept[:-1], kept[1:]
    even = EVEN * (counts[left] + counts[right]) / 2
    return np.where(right == left + 1, np.maximum(shared[left], 0.0), even)


def tent_sums(table: Array, knots: Sequence[Array], width: int) -> Array:
    """Return (features, 2 width - 1) sums over rows: the tents of every feature, then the
    products."""
    sums = np.zeros((len(knots), 2 * width - 1))
    for feature, own in enumerate(knots):
        if len(own) > 1:
            tents, products = Tents(own).sums(table[:, feature])
            sums[feature, : len(own)] = tents
            sums[feature, width : width + len(products)] = SHARED * products
    return sums
