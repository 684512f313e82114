"""A `PrivateScaler` that is fitted to partitions: its sums are added up on the driver.

Guarantee
---------
That of `winsor.tables.linear.scaler`. What partitions send to the driver is not noised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.ledger.shared_budget import settings_of
from winsor.core.randomness import key_for
from winsor.tables.linear.scaler import PrivateScaler, moments_of
from winsor.tables.partitions.passes import Passes
from winsor.tables.partitions.source import Partitions
from winsor.tables.surroundings import count_fit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CutMoments:
    """Sums of u and u^2 of some rows."""

    centre: Array
    half: Array

    def __call__(self, rows: Array) -> Array:
        return moments_of(rows, self.centre, self.half)


def fit_scaler(scaler: PrivateScaler, partitions: Partitions) -> PrivateScaler:
    """Fit ``scaler`` to all columns of ``partitions``, as `PrivateScaler.fit` would to one table.

    Examples
    --------
    >>> load = lambda: np.random.default_rng(0).normal(3.0, 2.0, size=(20_000, 1))
    >>> rows = Partitions.of_loaders([load, load], columns=1)
    >>> scaler = PrivateScaler(low=-20, high=20, epsilon=1.0, random_state=0)
    >>> bool(abs(fit_scaler(scaler, rows).mean_[0] - 3) < 0.1)
    True
    """
    passes, columns = Passes(partitions), partitions.columns

    def moments(centre: Array, half: Array) -> Array:
        return passes.sum(CutMoments(centre, half))

    key = key_for(scaler.random_state, 0, settings_of(scaler), passes.digest)
    scaler.n_features_in_ = columns
    scaler.fit_sums(passes.n, columns, passes.counted, moments, key)
    count_fit(scaler, None)
    return scaler
