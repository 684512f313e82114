"""What a private cell counts as: each is read alone, so that none decides how others are read.

NumPy and pandas give a column the type that its oddest cell asks for, and scikit-learn refuses a
table for one of them: either shows that row. Containers and the types that they declare are public.

    numbers     what is no number is 0 (or what the caller says); none is beyond -+1e100
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

LARGEST = 1e100
"""No number counts for more, so that squares and cubes of what is read are finite."""
_DATES = (date, timedelta, np.datetime64, np.timedelta64)
ENCODE = "Encode words: winsor.tables.PrivateEncoder, or 0 and 1 for each public category."


def as_numbers(
    given: Any, name: str = "x", missing: float = 0.0, remedy: str = ENCODE
) -> NDArray[np.float64]:
    """Return a column or a table as finite float64, whatever its cells hold.

    >>> as_numbers([1, None, "2.5", "red", 10**400]).tolist()
    [1.0, 0.0, 2.5, 0.0, 1e+100]
    """
    with np.errstate(all="ignore"):
        read = np.nan_to_num(_floats(given, name, remedy), copy=False, nan=missing)
        return np.asarray(np.clip(read, -LARGEST, LARGEST, out=read))


def _floats(given: Any, name: str, remedy: str) -> NDArray[np.float64]:
    """A new array, with NaN for what is no number."""
    frame = hasattr(given, "iloc") and hasattr(given, "columns")
    if isinstance(given, list | tuple):
        given = listed(given)
    elif not frame and not hasattr(getattr(given, "dtype", None), "kind"):
        given = np.asarray(given)
    types = list(given.dtypes) if frame else [given.dtype]
    odd = [j for j, each in enumerate(types) if each.kind not in "biuf" and each != np.dtype("O")]
    if odd:
        words = ", ".join(str(given.columns[j]) for j in odd[:5]) if frame else ""
        got = f"words in the columns {words}" if frame else types[0].type.__name__
        note = " (Complex data not supported)" if types[odd[0]].kind == "c" else ""
        raise ConfigurationError(
            f"{name} must be numbers. Got {got} instead{note}. Convert it first, such as with "
            f"{name}.astype(float). {remedy}"
        )
    if frame:
        columns = [_floats(given.iloc[:, j], name, remedy) for j in range(len(types))]
        return np.column_stack(columns) if columns else np.empty((len(given), 0))
    if not isinstance(given.dtype, np.dtype):
        given = given.to_numpy(dtype=np.float64, na_value=np.nan)
    cells = np.asarray(given)
    if cells.dtype.kind != "O":
        return cells.astype(np.float64)
    return np.array([number(cell) for cell in cells.ravel()], np.float64).reshape(cells.shape)


def listed(rows: Sequence[Any], plain: bool = True) -> NDArray[Any]:
    """Return lists as an array, of objects unless ``plain`` numbers will do: (n, d) if most entries
    are rows, with d the most frequent length. Rows of other lengths are missing."""
    try:
        found = np.asarray(rows)
        if found.size == 0 or (plain and found.dtype.kind in "biuf"):
            return found
    except (ValueError, TypeError, OverflowError):
        pass
    is_row = [isinstance(each, list | tuple) or getattr(each, "ndim", 0) > 0 for each in rows]
    lengths = [len(each) if row else -1 for each, row in zip(rows, is_row, strict=True)]
    d = max(sorted(set(lengths)), key=lengths.count)
    table = np.full((len(rows), max(d, 1)), None, dtype=object)
    for place in (place for place, length in enumerate(lengths) if length == d):
        for column, cell in enumerate(rows[place] if d >= 0 else [rows[place]]):
            table[place, column] = cell
    return table if d >= 0 else table[:, 0]


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
    if isinstance(cell, int | np.integer) and -(2**1000) < cell < 2**1000:
        return int(cell)
    value = number(cell)
    return None if not math.isfinite(value) else int(value) if value.is_integer() else value


def as_keys(given: Any) -> NDArray[Any]:
    """Return a column as it is, if its type says what it holds; otherwise as `key` of each cell."""
    cells, shape = given, None
    if not isinstance(given, list | tuple):
        given = given if hasattr(given, "astype") else np.asarray(given)
        if given.dtype.kind == "c":
            raise ConfigurationError("labels must be words or numbers. Complex data not supported.")
        if given.dtype.kind in "biufU" and isinstance(given.dtype, np.dtype):
            return np.asarray(given)
        objects = np.asarray(given.astype(object))
        cells, shape = objects.ravel(), objects.shape
    found = np.empty(len(cells), dtype=object)
    found[:] = [key(alone(cell)) for cell in cells]
    return found if shape is None else found.reshape(shape)


def alone(cell: Any) -> Any:
    """Return the only cell of a row, as in [[0], [1]]; others as they are."""
    return cell[0] if isinstance(cell, list | tuple) and len(cell) == 1 else cell


def named(column: NDArray[Any]) -> tuple[list[Any], Any]:
    """Return the `key` of each of the cells of `as_keys`, and which of these each row has."""
    plain = column.dtype.kind != "O"
    held, places = np.unique(column, return_inverse=True) if plain else (column, slice(None))
    return [key(each) for each in held.tolist()], places


def read_labels(column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the labels among `as_keys` in order, and the number of each row's; a missing one has
    that of the first."""
    keys, places = named(column)
    present = {each for each in keys if each is not None}
    if len({isinstance(each, str) for each in present}) > 1:
        raise ConfigurationError(
            "labels must be either words or whole numbers. Got both instead. Convert them."
        )
    labels = np.array(sorted(present))
    order = {label: place for place, label in enumerate(labels.tolist())}
    codes = np.array([order.get(each, 0) for each in keys], dtype=np.int64)
    return labels.astype(np.int64) if labels.dtype == bool else labels, codes[places]


def codes_among(column: NDArray[Any], options: Sequence[Any]) -> NDArray[np.int64]:
    """Return the place of each of `as_keys` among the public options; -1 where it is none."""
    order = {key(option): place for place, option in enumerate(options)}
    keys, places = named(column)
    return np.array([order.get(each, -1) for each in keys], dtype=np.int64)[places]
