"""What containers of tables are refused for, without the values in them.

Shapes, names and declared types are public, and may be refused; cells are read one by one
(`winsor.planning.cells`) and never are. scikit-learn's messages show rows ("array=[...]"), which
end up in logs: they are told without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    column_or_1d,
    validate_data,
)

from winsor.core.contract import ConfigurationError, WinsorError
from winsor.planning.cells import alone, as_keys, as_numbers, codes_among, read_labels

READ_OFF = "the classes are public: they were read off y"
GIVEN = "the classes are public: they were given"

CHOOSE = (
    "Choose another column, or a classifier for words: winsor.tables.PrivateLogisticRegression."
)


@contextmanager
def in_own_words() -> Iterator[None]:
    """Turn refusals of a table and its targets into `ConfigurationError`, without values."""
    try:
        yield
    except WinsorError:
        raise
    except ValueError as error:
        told = re.sub(r"\n?array=.*?\.\n(?=Reshape)", " ", str(error), flags=re.DOTALL)
        raise ConfigurationError(told) from None  # it quotes values


def as_table(X: Any) -> Any:
    """Return a table, dense or sparse (then CSR), as finite float64."""
    if not sparse.issparse(X):
        return as_numbers(X, "X")
    if X.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"X must hold real numbers if sparse. Got dtype {X.dtype} instead (Complex data not "
            "supported). Convert it with X.astype(float)."
        )
    table = sparse.csr_array(X, dtype=np.float64, copy=True)
    table.sum_duplicates()
    table.data = as_numbers(table.data)
    return table


def read_table(
    estimator: Any,
    X: Any,
    y: Any = "no_validation",
    *,
    reset: bool = True,
    read: Callable[[Any], Any] = as_table,
    **options: Any,
) -> Any:
    """Return ``X`` as ``read`` reads it, and have ``estimator`` remember or know its columns.

    Any ``y`` must have as many rows; it is not read.
    """
    with in_own_words():
        table = X if sparse.issparse(X) and not options.get("accept_sparse") else read(X)
        table = check_array(table, dtype=None, input_name="X", estimator=estimator, **options)
        named = X if hasattr(X, "columns") else table
        validate_data(estimator, named, y, reset=reset, skip_check_array=True)
        if not isinstance(y, str):
            check_consistent_length(table, y)
    return table


def known_table(estimator: Any, table: Any, **options: Any) -> Any:
    """Return a table with the columns that ``estimator`` was fitted to."""
    return read_table(estimator, table, reset=False, **options)


def as_targets(y: Any, missing: float = 0.0) -> NDArray[np.float64]:
    """Return targets of a regression; what is no number counts as ``missing``."""
    given = [alone(cell) for cell in y] if isinstance(y, list | tuple) else y
    return np.asarray(_column(as_numbers(given, "y", missing, CHOOSE)))


def as_labels(y: Any, classes: Any = None) -> tuple[NDArray[Any], NDArray[np.int64], str]:
    """Return the classes in order, the number of each row's, and the condition of a guarantee.

    A missing label has the number of the first class, and so has one that is not among public
    ``classes``.
    """
    column = _column(as_keys(y))
    if classes is not None:
        options = np.unique(np.asarray(classes))
        return options, codes_among(column, options.tolist()).clip(min=0), GIVEN
    labels, codes = read_labels(column)
    with in_own_words():
        if len(labels):
            check_classification_targets(labels[codes])
    return labels, codes, READ_OFF


def _column(given: NDArray[Any]) -> NDArray[Any]:
    with in_own_words():
        return np.asarray(column_or_1d(given, warn=True))
