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
from winsor.tables.surroundings import note_given

READ_OFF = "the classes are public: they were read off y"
GIVEN = "the classes are public: they were given"

CHOOSE = "Choose another column, or a classifier: winsor.tables.PrivateLogisticRegression."


@contextmanager
def in_own_words() -> Iterator[None]:
    """Turn scikit-learn's refusals into `ConfigurationError`, without values."""
    try:
        with np.errstate(all="ignore"):
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


@in_own_words()
def read_table(
    estimator: Any,
    X: Any,
    y: Any = "no_validation",
    *,
    reset: bool = True,
    read: Callable[[Any], Any] = as_table,
    **options: Any,
) -> Any:
    """Return ``X`` as ``read`` reads it, and have ``estimator`` remember or know its columns. Any
    ``y`` must have as many rows; it is not read."""
    note_given(estimator, X)
    table = X if sparse.issparse(X) and "accept_sparse" not in options else read(X)
    table = check_array(table, dtype=None, input_name="X", estimator=estimator, **options)
    frame = X if hasattr(X, "columns") else table
    validate_data(estimator, frame, y, reset=reset, skip_check_array=True)
    if not isinstance(y, str):
        check_consistent_length(table, y)
    return table


def known_table(estimator: Any, table: Any, **options: Any) -> Any:
    """Return a table with the columns that ``estimator`` was fitted to."""
    return read_table(estimator, table, reset=False, **options)


@in_own_words()
def as_targets(y: Any, missing: float = 0.0) -> NDArray[np.float64]:
    """Return targets of a regression; what is no number counts as ``missing``."""
    given = [alone(cell) for cell in y] if isinstance(y, list | tuple) else y
    return np.asarray(column_or_1d(as_numbers(given, "y", missing, CHOOSE), warn=True))


@in_own_words()
def as_labels(y: Any, classes: Any = None) -> tuple[NDArray[Any], NDArray[np.int64], str]:
    """Return the classes in order, the number of each row's, and the condition of a guarantee.

    A missing label counts as the first class, and so does one that is not among public ``classes``.
    """
    column, condition = column_or_1d(as_keys(y), warn=True), READ_OFF
    if classes is None:
        found, codes = read_labels(column)
        check_classification_targets(found[codes] if len(found) else np.zeros(1))
    else:
        found, condition = np.unique(np.asarray(classes)), GIVEN
        codes = codes_among(column, found.tolist()).clip(min=0)
    if len(found) < 2:
        raise ConfigurationError("y must hold at least two classes. Got one class instead.")
    return found, codes, condition
