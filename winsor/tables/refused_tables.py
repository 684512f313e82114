"""What scikit-learn refuses about a table, retold without the values that it quotes.

Its messages show rows ("array=[...]", "could not convert string to float: 'red'"), which end up in
logs, and advise imputers, whose means of private rows no account would contain.
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
        with np.errstate(all="ignore"):
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


def refuse_odd_sparse(X: Any) -> None:
    """Refuse sparse tables of objects, strings or complex numbers, with a hint how to convert."""
    if sparse.issparse(X) and X.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"X must hold real numbers if sparse. Got dtype {X.dtype} instead (Complex data not "
            "supported). Convert it with X.astype(float)."
        )
