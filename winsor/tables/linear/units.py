"""Linear models where a person has several rows: one row of each, drawn at random.

Guarantee
---------
A person's row is chosen by coins that look at nothing but which rows are that person's. So a person
with all rows is to the fit what a row is otherwise, whatever the method; n counts persons. The same
row is used in every step, and the others are not used at all: nothing is gained from a person's
further rows. `winsor.make_private(unit=...)` uses several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError
from winsor.core.randomness import stream
from winsor.core.sampling.units import UnitRows

Unit = Sequence[Any] | NDArray[Any]
SAID = "one unit with all its rows is protected: one row of each, drawn at random, is used"


def one_row_each(n: int, unit: Unit, key: bytes) -> NDArray[np.int64]:
    """Which rows are used, in their order: one of each unit, all of its rows equally likely.

    >>> len(one_row_each(5, ["a", "b", "a", "a", "b"], bytes(32)))
    2
    """
    units = UnitRows(unit, 1)
    if units.n_rows != n:
        raise ConfigurationError(
            f"unit must give one identifier for each of the {n} rows. Got {units.n_rows} instead."
        )
    shuffled = stream(key, "one row of each unit", 0).permutation(n)
    _, first = np.unique(units.places[shuffled], return_index=True)
    return np.sort(shuffled[first]).astype(np.int64)
