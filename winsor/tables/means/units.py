"""Means where a person has several rows: first the mean of each person, then the estimator.

    z_u = (1/r_u) sum of the r_u rows of person u,        n = number of persons

What is estimated is the mean over persons, in which each counts once however many rows it has.

Guarantee
---------
z_u is a function of the rows of person u alone. So an estimator that protects one row of its input
protects one person with all rows here; n is the number of persons, and public, while how many rows
a person has is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.contract import ConfigurationError
from winsor.core.inputs import as_rows
from winsor.core.sampling.units import UnitRows

Array = NDArray[np.float64]
Unit = Sequence[Any] | NDArray[Any]


def protected_rows(x: ArrayLike, unit: Unit | None) -> tuple[Array, bool, tuple[str, ...]]:
    """What is protected one by one: rows, or means of persons; whether it came as a plain column;
    and what the guarantee must say.

    >>> rows, _, said = protected_rows([1.0, 3.0, 10.0], ["a", "a", "b"])
    >>> rows[:, 0].tolist(), said[0]
    ([2.0, 10.0], 'one unit with all its rows is protected, by the mean of its rows')
    """
    rows, column = as_rows(x)
    if unit is None:
        return rows, column, (f"n = {len(rows)} is public",)
    units = UnitRows(unit, 1)
    if units.n_rows != len(rows):
        raise ConfigurationError(
            f"unit must give one identifier for each of the {len(rows)} rows. Got {units.n_rows} "
            "instead."
        )
    means = np.zeros((units.n, rows.shape[1]))
    count = np.bincount(units.places, minlength=units.n)
    np.add.at(means, units.places, rows / count[units.places, None])  # divided first: no overflow
    said = "one unit with all its rows is protected, by the mean of its rows"
    return means, column, (said, f"the number of units, n = {units.n}, is public")
