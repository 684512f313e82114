"""Public bounds of columns, however they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError

Array = NDArray[np.float64]


def as_bounds(bounds: Any, columns: int) -> Array | None:
    """(columns, 2) lows and highs, NaN where a column has none; None if nothing is given.

    ``bounds`` is None, one pair for all columns, or a pair or None for each.

    >>> as_bounds([(0, 1), None], 2).tolist()
    [[0.0, 1.0], [nan, nan]]
    >>> as_bounds((0, 100), 2).tolist()
    [[0.0, 100.0], [0.0, 100.0]]
    """
    if bounds is None:
        return None
    try:
        given = list(bounds)
        if len(given) == 2 and all(np.isscalar(each) for each in given):
            given = [tuple(given)] * columns
        table = np.array(
            [(np.nan, np.nan) if each is None else tuple(each) for each in given], dtype=np.float64
        )
    except (TypeError, ValueError) as error:
        raise _refused(bounds, columns) from error
    if table.shape != (columns, 2):
        raise _refused(bounds, columns)
    known: NDArray[np.bool_] = np.asarray(~np.isnan(table).any(axis=1))
    wrong = np.flatnonzero(known & ~(np.isfinite(table).all(axis=1) & (table[:, 0] < table[:, 1])))
    if len(wrong):
        raise ConfigurationError(
            "bounds must be finite with low < high in every column. Got "
            f"{tuple(table[wrong[0]].tolist())} for column {wrong[0]} instead. Leave a column's "
            "bounds out (None) to have them learnt within the budget."
        )
    return np.where(known[:, None], table, np.nan)


def scaled(bounds: Array) -> NDArray[np.bool_]:
    """Columns in (0, 1) and (-1, 1), which are taken as they are."""
    return np.asarray(np.isin(bounds[:, 0], (-1.0, 0.0)) & (bounds[:, 1] == 1.0))


def _refused(bounds: Any, columns: int) -> ConfigurationError:
    return ConfigurationError(
        f"bounds must be None, a pair (low, high), or a pair or None for each of {columns} columns."
        f" Got {bounds!r} instead."
    )
