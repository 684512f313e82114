"""The clipped mean of a table in partitions.

    each partition    sum_i min(1, R/|x_i - c|) (x_i - c)
    the driver        the sum of the sums, divided by the public n, one Gaussian release

Guarantee
---------
As `winsor.tables.clipped_mean`: a row moves the total by at most R, whichever partition it is in,
and there is one release. What partitions send to the driver is not noised: they must be as private
as the driver is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.checks import as_delta, as_relation, positive
from winsor.core.contract import Neighbouring
from winsor.core.inputs import as_centre, as_key
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.tables.means.clipped import clipped_sum, distances, mean_sensitivity
from winsor.tables.means.result import MeanEstimate
from winsor.tables.partitions.source import Partitions

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ClippedSum:
    """sum_i min(1, R/|x_i - c|) (x_i - c) of some rows."""

    point: Array
    radius: float

    def __call__(self, rows: Array) -> Array:
        return clipped_sum(rows, self.point, distances(rows, self.point), self.radius)


def clipped_mean(
    partitions: Partitions,
    *,
    radius: float,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    centre: ArrayLike | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> MeanEstimate:
    """Private mean of rows in partitions, clipped to ``radius`` about ``centre``.

    Parameters are those of `winsor.tables.clipped_mean`; the radius is public. One pass over the
    rows, one partition in memory at a time on each worker.

    Examples
    --------
    >>> import functools, numpy as np
    >>> load = lambda seed: np.random.default_rng(seed).standard_t(3, size=(5_000, 2)) + 1.0
    >>> parts = Partitions.of_loaders([functools.partial(load, s) for s in range(4)], columns=2)
    >>> result = clipped_mean(parts, radius=8.0, epsilon=1.0, random_state=0)
    >>> bool(np.linalg.norm(result.estimate - 1.0) < 0.1), round(result.guarantee.epsilon, 3)
    (True, 0.999)
    """
    d, reach = partitions.columns, positive("radius", radius)
    point = np.array(as_centre(centre, d))
    n, total = partitions.sum(ClippedSum(point, reach))
    target = Target(epsilon, as_delta(delta, n, allow_large_delta), rho, as_relation(relation))
    key = as_key(random_state, "clipped mean of partitions", target, reach, point, total)
    door = PrepaidDoor(Ledger({"method": "clipped_mean", "n": n, "d": d}), target.relation, key)
    multiplier = noise_multiplier([Payment(FullBatch(n), mean_sensitivity(1.0, n), 1)], target)
    sensitivity = mean_sensitivity(reach, n)
    receipt = door.pay(Gaussian(multiplier), FullBatch(n), sensitivity, 1, d)
    estimate = receipt.release(total / n) + point
    return MeanEstimate(
        estimate=estimate,
        guarantee=door.guarantee(target.delta),
        error_bound=None,
        radius=reach,
        noise_std=receipt.std,
        rho=(sensitivity.under(target.relation) / receipt.std) ** 2 / 2,
        ledger=door.ledger,
    )
