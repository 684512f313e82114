"""What a private cell counts as: read one at a time, so that none decides how others are read.

NumPy and pandas give a whole column the type that its oddest cell asks for, and scikit-learn
refuses a table for one of them. Either shows that row. Here the container and the types that it
declares are public; whatever a cell holds beyond them is settled for that cell alone.

    numbers     missing, or no number    0, or what the caller says        infinite    -+1e100
    labels      whole numbers are integers whatever type holds them; a missing label is no class
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError

Array = NDArray[np.float64]

LARGEST = 1e100
"""No number counts for more, so that squares and cubes of what is read are finite."""
_DATES = (date, timedelta, np.datetime64, np.timedelta64)
ENCODE = (
    "Encode them before: winsor.tables.PrivateEncoder, or one column of 0 and 1 for each "
    "public category."
)


def as_numbers(given: Any, name: str = "x", missing: float = 0.0, remedy: str = ENCODE) -> Array:
    """Return a column or a table as finite float64, whatever its cells hold.

    >>> as_numbers([1, None, "2.5", "red", 10**400]).tolist()
    [1.0, 0.0, 2.5, 0.0, 1e+100]
    """
    with np.errstate(all="ignore"):
        read = np.nan_to_num(_floats(given, name, remedy), copy=True, nan=missing)
        return np.asarray(np.clip(read, -LARGEST, LARGEST, out=read))


def _floats(given: Any, name: str, remedy: str) -> Array:
    if hasattr(given, "iloc") and hasattr(given, "columns"):
        kinds = dict(zip(range(given.shape[1]), given.dtypes, strict=True))
        words = [str(given.columns[j]) for j, kind in kinds.items() if not _open_to_numbers(kind)]
        if words:
            raise ConfigurationError(
                f"{name} must be numbers. Got words in the columns {', '.join(words[:5])} instead. "
                f"{remedy}"
            )
        found = [_floats(given.iloc[:, j], name, remedy) for j in kinds]
        return np.column_stack(found) if found else np.empty((len(given), 0))
    if isinstance(given, list | tuple):
        cells = listed(given)
    else:
        cells = given if hasattr(getattr(given, "dtype", None), "kind") else np.asarray(given)
    if not _open_to_numbers(cells.dtype):
        odd = " (Complex data not supported)" if cells.dtype.kind == "c" else ""
        kind = cells.dtype.type.__name__
        raise ConfigurationError(
            f"{name} must be numbers. Got {kind} instead{odd}. Convert it first, such "
            f"as with {name}.astype(float). {remedy}"
        )
    if not isinstance(cells.dtype, np.dtype):
        return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))
    cells = np.asarray(cells)
    if cells.dtype.kind != "O":
        return cells.astype(np.float64)
    return np.array([number(cell) for cell in cells.ravel()], np.float64).reshape(cells.shape)


def _open_to_numbers(dtype: Any) -> bool:
    """Whether a declared type is that of numbers, or says nothing (object)."""
    return dtype.kind in "biuf" or dtype == np.dtype(object)


def listed(rows: Sequence[Any], plain: bool = True) -> NDArray[Any]:
    """Return lists as an array, of objects unless ``plain`` numbers will do: (n, d) if most entries
    are rows, with d the most frequent length. Rows of other lengths are missing."""
    try:
        found = np.asarray(rows)
        if found.size == 0 or (plain and found.dtype.kind in "biuf"):
            return found
    except (ValueError, TypeError, OverflowError):
        pass
    lengths = [len(row) if _is_row(row) else -1 for row in rows]
    d = max(sorted(set(lengths)), key=lengths.count)
    table = np.full((len(rows), max(d, 1)), None, dtype=object)
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if length == d:
            for column, cell in enumerate([row] if d < 0 else row):
                table[place, column] = cell
    return table if d >= 0 else table[:, 0]


def _is_row(entry: Any) -> bool:
    return isinstance(entry, list | tuple) or (hasattr(entry, "shape") and len(entry.shape) > 0)


def number(cell: Any) -> float:
    """Return what one cell counts as; NaN if it is no number."""
    try:
        if isinstance(cell, str | Decimal | Real | np.bool_) and not isinstance(cell, _DATES):
            return float(cell)
    except OverflowError:
        return math.inf if cell > 0 else -math.inf
    except (TypeError, ValueError, ArithmeticError):
        pass
    return math.nan


def key(cell: Any) -> bool | int | float | str | None:
    """Return what one cell is called: equal things are called the same, and None is missing.

    >>> [key(cell) for cell in (2.0, np.int8(2), float("nan"), True, "2")]
    [2, 2, None, True, '2']
    """
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if isinstance(cell, bytes | str):
        return str(cell) if isinstance(cell, str) else repr(cell)
    if isinstance(cell, _DATES):
        return str(cell) if cell == cell else None
    if not isinstance(cell, Decimal | Real):
        return None
    if isinstance(cell, int | np.integer) and -(2**1000) < cell < 2**1000:
        return int(cell)
    value = number(cell)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else value


def as_keys(given: Any) -> NDArray[Any]:
    """Return a column as it is, if its type says what it holds; otherwise as `key` of each cell."""
    if isinstance(given, list | tuple):
        cells, shape = list(given), (len(given),)
    else:
        given = given if hasattr(given, "astype") else np.asarray(given)
        if given.dtype.kind == "c":
            raise ConfigurationError("labels must be words or numbers. Complex data not supported.")
        if given.dtype.kind in "biufU" and isinstance(given.dtype, np.dtype):
            return np.asarray(given)
        objects = np.asarray(given.astype(object))
        cells, shape = list(objects.ravel()), objects.shape
    found = np.empty(len(cells), dtype=object)
    found[:] = [key(alone(cell)) for cell in cells]
    return found.reshape(shape)


def alone(cell: Any) -> Any:
    """Return the only cell of a row, as in [[0], [1]]; others as they are."""
    return cell[0] if isinstance(cell, list | tuple) and len(cell) == 1 else cell


def read_labels(column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the labels among `as_keys` in order, and the number of each row's; a missing one has
    that of the first."""
    words = column.dtype.kind == "O"
    missing = np.zeros(len(column), dtype=bool)
    if words or column.dtype.kind == "f":
        missing = np.array([each is None for each in column]) if words else ~np.isfinite(column)
    present = column[~missing]
    if words and len({isinstance(each, str) for each in present}) > 1:
        raise ConfigurationError(
            "labels must be either words or whole numbers. Got both instead. Convert them."
        )
    labels, own = np.unique(present, return_inverse=True)
    if words:  # no wider than the labels; bools are whole numbers
        labels = np.array([int(each) if isinstance(each, bool) else each for each in labels])
    codes = np.zeros(len(column), dtype=np.int64)
    codes[~missing] = own
    return labels, codes


def codes_among(column: NDArray[Any], options: Sequence[Any]) -> NDArray[np.int64]:
    """Return the place of each of `as_keys` among the public options; -1 where it is none."""
    order = {key(option): place for place, option in enumerate(options)}
    if column.dtype.kind == "O":
        return np.array([order.get(each, -1) for each in column], dtype=np.int64)
    found = np.full(column.shape, -1, dtype=np.int64)
    for option, place in order.items():
        found[column == option] = place
    return found
