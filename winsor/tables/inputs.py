"""What users give of a table, checked: public bounds, targets, exposures, scikit-learn's refusals.

scikit-learn's messages show rows ("array=[...]", "could not convert string to float: 'red'"), which
end up in logs, and advise imputers, whose means of private rows no account would contain. Here they
are retold without values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from winsor.core.contract import ConfigurationError, WinsorError

Array = NDArray[np.float64]


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


FILL = (
    "Fill the gaps by a rule that looks at one row at a time: a constant that you know, and a "
    "column that says where; or leave the column out."
)
ENCODE = (
    "Encode them before: winsor.tables.PrivateEncoder, or one column of 0 and 1 for each "
    "public category."
)


@contextmanager
def in_own_words(table: Any = None) -> Iterator[None]:
    """Turn refusals of ``table`` and its targets into `ConfigurationError`, without values."""
    try:
        yield
    except WinsorError:
        raise
    except ValueError as error:
        raise ConfigurationError(_retold(str(error), table)) from None  # it quotes values


def _retold(text: str, table: Any) -> str:
    if "convert string" in text or "could not convert" in text:
        return f"X must be numbers. Got words{_where(table)} instead. {ENCODE}"
    missing = re.match(r"Input (X|y) contains NaN", text)
    if missing:
        remedy = FILL if missing[1] == "X" else "Leave out the rows without a target."
        return f"{missing[1]} must be finite. Input {missing[1]} contains NaN. {remedy}"
    return re.sub(r"\n?array=.*?\.\n(?=Reshape)", " ", text, flags=re.DOTALL)


def _where(table: Any) -> str:
    """The columns of a data frame that are no numbers: their names are public."""
    kinds = getattr(table, "dtypes", None)
    if kinds is None or not hasattr(kinds, "items"):
        return ""
    names = [str(name) for name, kind in kinds.items() if getattr(kind, "kind", "O") not in "fiub"]
    return f" in the columns {', '.join(names[:5])}" if names else ""


def known_table(estimator: Any, table: Any, **options: Any) -> Any:
    """Return a table with the columns that ``estimator`` was fitted to."""
    with in_own_words(table):
        return validate_data(estimator, table, dtype=np.float64, reset=False, **options)


def refuse_no_classes(y: Any) -> None:
    """Refuse targets that are no labels: amounts, or more than one column."""
    with in_own_words():
        check_classification_targets(y)


def as_targets(y: Any) -> NDArray[np.float64]:
    """Return targets of a regression as numbers."""
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(
            "y must be numbers for a regression. Got words instead. Choose another column, or a "
            "classifier: winsor.tables.PrivateLogisticRegression."
        ) from None  # it quotes a value


def positive_column(name: str, given: Any, n: int) -> Array:
    """Return ``given`` as (n,) positive finite numbers."""
    column = np.asarray(given, dtype=np.float64)
    if column.shape != (n,) or not (np.isfinite(column).all() and (column > 0).all()):
        raise ConfigurationError(
            f"{name} must be a positive finite number for each of {n} rows. Got shape "
            f"{column.shape} instead, or values that are not. Drop rows without {name}."
        )
    return column


def as_exposure(given: Any, n: int) -> Array:
    """Return (n,) positive numbers; ones if not given."""
    return np.ones(n) if given is None else positive_column("exposure", given, n)


def data_of(X: Any) -> list[Array]:
    """Return the arrays that hold a table, dense or sparse."""
    return [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]


def refuse_odd_sparse(X: Any) -> None:
    """Refuse sparse tables of objects, strings or complex numbers, with a hint how to convert."""
    if sparse.issparse(X) and X.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"X must hold real numbers if sparse. Got dtype {X.dtype} instead (Complex data not "
            "supported). Convert it with X.astype(float)."
        )
