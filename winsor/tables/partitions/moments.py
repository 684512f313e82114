"""Means and second moments of a table in partitions: all that least squares needs.

    a_i      = (x_i - c, b) cut to length B, b = the public ``reach``, so that the ones count
    release  (1/n) sum_i a_i a_i'    its triangle, off-diagonal entries times sqrt(2)

Everything later is free: means, covariances, and least squares of any column on any others.

Guarantee
---------
a_i depends on row i and public values only. The triangle of a a', off-diagonal entries times
sqrt(2), has length |a|^2 <= B^2, so a row moves the mean over the public n by at most B^2/n.
One Gaussian release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.checks import as_delta, as_relation, positive
from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring, Sensitivity
from winsor.core.inputs import as_centre, as_key
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.tables.means.clipped import clip_factors
from winsor.tables.partitions.source import Partitions

Array = NDArray[np.float64]

_PROOF = "rows (x - c, b) cut to length B: the triangle of a a' has length at most B^2"


@dataclass(frozen=True)
class Moments:
    """Released moments of rows about a public centre, and what follows from them."""

    matrix: Array
    """(1/n) sum of (x - c, b)(x - c, b)', with noise."""
    centre: Array
    reach: float
    noise_std: float
    """Of a diagonal entry; an off-diagonal one has 1/sqrt(2) of it."""
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)

    @property
    def mean(self) -> Array:
        return np.asarray(self.centre + self.matrix[:-1, -1] / self.reach)

    @property
    def covariance(self) -> Array:
        """Not always positive definite: noise is noise."""
        shift = self.matrix[:-1, -1] / self.reach
        return np.asarray(self.matrix[:-1, :-1] - np.outer(shift, shift))

    def least_squares(
        self, target: int, columns: Sequence[int], alpha: float = 0.0
    ) -> tuple[Array, float]:
        """Weights of ``columns`` and the level, for column ``target``, with a penalty
        alpha/2 |w|^2. Directions that the noise hides are held back."""
        chosen = list(columns)
        if target in chosen or not chosen:
            raise ConfigurationError(
                f"columns must be others than the target, at least one. Got {chosen} for {target}."
            )
        covariance, mean = self.covariance, self.mean
        values, vectors = np.linalg.eigh(covariance[np.ix_(chosen, chosen)])
        floor = 2 * math.sqrt(2 * len(chosen)) * self.noise_std / math.sqrt(2)
        system = (vectors * np.maximum(values, floor)) @ vectors.T + alpha * np.eye(len(chosen))
        weights = np.linalg.solve(system, covariance[chosen, target])
        return np.asarray(weights), float(mean[target] - mean[chosen] @ weights)


@dataclass(frozen=True)
class Triangle:
    """The triangle of sum_i a_i a_i' of some rows."""

    point: Array
    bound: float
    reach: float

    def __call__(self, rows: Array) -> Array:
        table = np.empty((len(rows), rows.shape[1] + 1))
        table[:, :-1] = rows - self.point
        table[:, -1] = self.reach
        norms = np.sqrt(np.einsum("ij,ij->i", table, table))
        table *= clip_factors(norms, self.bound)[:, None]
        return _packed(table.T @ table)


def second_moments(
    partitions: Partitions,
    *,
    bound: float,
    reach: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    centre: ArrayLike | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> Moments:
    """Private means and second moments of rows in partitions.

    Parameters
    ----------
    partitions
        Where the rows are.
    bound
        Rows (x - centre, reach) are cut to this length: public. Scale columns alike before.
    reach
        The constant beside the row; default ``bound / 2``. Larger favours means, smaller second
        moments.
    epsilon, delta, rho, centre, relation, random_state, allow_large_delta
        As in `winsor.tables.clipped_mean`.
    """
    d, bound = partitions.columns, positive("bound", bound)
    beside = positive("reach", bound / 2 if reach is None else reach)
    if beside >= bound:
        raise ConfigurationError(
            f"reach must be below bound = {bound}: it is part of what is cut. Got {beside} instead."
        )
    point = np.array(as_centre(centre, d))
    n, total = partitions.sum(Triangle(point, bound, beside))
    target = Target(epsilon, as_delta(delta, n, allow_large_delta), rho, as_relation(relation))
    key = as_key(random_state, "moments of partitions", target, bound, beside, point, total)
    ledger = Ledger({"method": "second_moments", "n": n, "d": d})
    door = PrepaidDoor(ledger, target.relation, key)
    unit = Sensitivity.per_sample(1.0, _PROOF)
    multiplier = noise_multiplier([Payment(FullBatch(n), unit, 1)], target)
    sensitivity = Sensitivity.per_sample(bound**2 / n, _PROOF)
    receipt = door.pay(Gaussian(multiplier), FullBatch(n), sensitivity, 1, len(total))
    released = receipt.release(total / n)
    return Moments(
        matrix=_unpacked(released, d + 1),
        centre=point,
        reach=beside,
        noise_std=receipt.std,
        guarantee=door.guarantee(target.delta),
        ledger=ledger,
    )


def _packed(square: Array) -> Array:
    rows, columns = np.triu_indices(len(square))
    return np.where(rows == columns, 1.0, math.sqrt(2)) * square[rows, columns]


def _unpacked(packed: Array, size: int) -> Array:
    rows, columns = np.triu_indices(size)
    square = np.zeros((size, size))
    square[rows, columns] = packed / np.where(rows == columns, 1.0, math.sqrt(2))
    return np.asarray(square + np.triu(square, 1).T)
