"""What users give of a table, checked: rows, centres, public bounds, positive columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.contract import ConfigurationError
from winsor.planning.cells import as_numbers

Array = NDArray[np.float64]


def as_rows(x: ArrayLike) -> tuple[Array, bool]:
    """Return ``x`` as an (n, d) float64 array, whether it came as a plain (n,) column. Cells that
    are no numbers count as 0."""
    rows = as_numbers(x)
    if rows.ndim not in (1, 2) or rows.size == 0:
        raise ConfigurationError(
            f"x must have shape (n,) or (n, d) with n, d >= 1. Got shape {rows.shape} instead."
        )
    return (rows[:, None], True) if rows.ndim == 1 else (rows, False)


def as_centre(centre: ArrayLike | None, d: int) -> Array:
    """The public point that radii are measured from; the origin if not given."""
    if centre is None:
        return np.zeros(d)
    point = np.broadcast_to(np.asarray(centre, dtype=np.float64), (d,))
    if not np.isfinite(point).all():
        raise ConfigurationError(f"centre must be finite. Got {centre!r} instead.")
    return point


def as_bounds(bounds: Any, columns: int) -> Array | None:
    """Return (columns, 2) lows and highs, NaN where a column has none; None if nothing is given.

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
    """Return columns in (0, 1) and (-1, 1), which are taken as they are."""
    return np.asarray(np.isin(bounds[:, 0], (-1.0, 0.0)) & (bounds[:, 1] == 1.0))


def _refused(bounds: Any, columns: int) -> ConfigurationError:
    return ConfigurationError(
        f"bounds must be None, a pair (low, high), or a pair or None for each of {columns} columns."
        f" Got {bounds!r} instead."
    )


def within(values: Array, bound: float = 1.0) -> Array:
    """Return values cut to [-bound, bound]; what is not a number becomes 0."""
    return np.clip(np.where(np.isnan(values), 0.0, values), -bound, bound)


def positive_column(name: str, given: Any, n: int) -> Array:
    """Return ``given`` as (n,) numbers of at least 1e-12; what is not positive counts as 1."""
    column = as_numbers(given, name)
    if column.shape != (n,):
        raise ConfigurationError(
            f"{name} must be a positive finite number for each of {n} rows. Got shape "
            f"{column.shape} instead. Give one for each row."
        )
    return np.where(column > 0, column, 1.0).clip(min=1e-12)


def as_exposure(given: Any, n: int) -> Array:
    """Return (n,) positive numbers; ones if not given."""
    return np.ones(n) if given is None else positive_column("exposure", given, n)


def data_of(X: Any) -> list[Array]:
    """Return the arrays that hold a table, dense or sparse."""
    return [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
