"""Persons with several rows: their means, or one row of each.

Guarantee
---------
Means: z_u is a function of the rows of person u alone. So an estimator that protects one row of its
input protects one person with all rows here; n is the number of persons, and public, while how many
rows a person has is not. What is estimated is the mean over persons, in which each counts once.

One row of each (linear models): a person's row is chosen by coins that look at nothing but which
rows are that person's. So a person with all rows is to the fit what a row is otherwise, whatever
the method; n counts persons. The same row is used in every step, and the others are not used at
all: nothing is gained from a person's further rows. `winsor.make_private(unit=...)` uses several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.contract import ConfigurationError
from winsor.core.randomness import stream
from winsor.core.sampling.units import UnitRows
from winsor.tables.inputs import as_rows

Array = NDArray[np.float64]
Unit = Sequence[Any] | NDArray[Any]

ONE_ROW_EACH = "one unit with all its rows is protected: one row of each, drawn at random, is used"
MEAN_OF_ROWS = "one unit with all its rows is protected, by the mean of its rows"


def protected_rows(x: ArrayLike, unit: Unit | None) -> tuple[Array, bool, tuple[str, ...]]:
    """Return what is protected one by one (rows, or means of persons), whether ``x`` was a plain
    column, and what the guarantee must say.

    >>> rows, _, conditions = protected_rows([1.0, 3.0, 10.0], ["a", "a", "b"])
    >>> rows[:, 0].tolist(), conditions[0]
    ([2.0, 10.0], 'one unit with all its rows is protected, by the mean of its rows')
    """
    rows, column = as_rows(x)
    if unit is None:
        return rows, column, (f"n = {len(rows)} is public",)
    units = _units(len(rows), unit)
    means = np.zeros((units.n, rows.shape[1]))
    count = np.bincount(units.places, minlength=units.n)
    np.add.at(means, units.places, rows / count[units.places, None])  # divided first: no overflow
    return means, column, (MEAN_OF_ROWS, f"the number of units, n = {units.n}, is public")


def one_row_each(n: int, unit: Unit, key: bytes) -> NDArray[np.int64]:
    """Return which rows are used, ascending: one of each unit, all of its rows equally likely.

    >>> len(one_row_each(5, ["a", "b", "a", "a", "b"], bytes(32)))
    2
    """
    units = _units(n, unit)
    shuffled = stream(key, "one row of each unit", 0).permutation(n)
    _, first = np.unique(units.places[shuffled], return_index=True)
    return np.sort(shuffled[first]).astype(np.int64)


def _units(n: int, unit: Unit) -> UnitRows:
    units = UnitRows(unit, 1)
    if units.n_rows != n:
        raise ConfigurationError(
            f"unit must give one identifier for each of the {n} rows. Got {units.n_rows} instead."
        )
    return units
