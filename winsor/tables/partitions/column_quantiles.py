"""Quantiles of every column of a table in partitions.

    each partition   counts between the edges of this round, column by column
    the driver       adds them up, one Gaussian release per round, edges for the next

Guarantee
---------
That of `winsor.tables.ranges.zoom`: counts are sums over rows, so it does not matter who adds them
up. What partitions send to the driver is not noised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import as_delta, as_relation, fraction, whole
from winsor.core.contract import Guarantee, Neighbouring
from winsor.core.inputs import as_key
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.planning.budget import Target, noise_multiplier
from winsor.tables.partitions.passes import Passes
from winsor.tables.partitions.source import Partitions
from winsor.tables.ranges.binner import Bins
from winsor.tables.ranges.bounds import as_bounds
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnQuantiles:
    """Quantiles of every column, and the distributions that they were read from."""

    levels: Array
    values: Array
    """(columns, levels)."""
    distributions: list[Distribution] = field(repr=False)
    """Further quantiles and edges of bins are free: `Distribution.quantile`, `.cells`."""
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)


def quantiles(
    partitions: Partitions,
    levels: Sequence[float],
    *,
    bins: int = 32,
    bounds: Any = None,
    epsilon: float,
    delta: float | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> ColumnQuantiles:
    """Private quantiles at ``levels`` of all columns, in any units.

    Parameters are those of `winsor.tables.private_bins`. One pass that counts rows, then one for
    each of three rounds; with public ``bounds`` of all columns, one round is enough.

    Examples
    --------
    >>> load = lambda: np.random.default_rng(0).lognormal(7, 2, size=(20_000, 1))
    >>> found = quantiles(
    ...     Partitions.of_loaders([load], columns=1), [0.5], epsilon=1.0, random_state=0
    ... )
    >>> bool(abs(np.log(found.values[0, 0]) - 7) < 0.1)
    True
    """
    wanted = np.array([fraction("levels", level) for level in levels])
    passes, k = Passes(partitions), partitions.columns
    n = passes.n
    plan = Bins(k, whole("bins", bins, 2), as_bounds(bounds, k))
    target = Target(epsilon, as_delta(delta, n, allow_large_delta), None, as_relation(relation))
    key = as_key(random_state, "quantiles of partitions", bins, str(bounds), target, passes.digest)
    door = PrepaidDoor(Ledger({"method": "quantiles", "n": n, "d": k}), target.relation, key)
    mechanism = Gaussian(noise_multiplier([plan.payment(n)], target))
    found = plan.zoom.release_counts(passes.counted, n, door, mechanism, plan.start)
    return ColumnQuantiles(
        levels=wanted,
        values=np.array([each.quantile(wanted) for each in found]),
        distributions=found,
        guarantee=door.guarantee(target.delta, (f"n = {n} is public",)),
        ledger=door.ledger,
    )
