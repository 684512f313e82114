"""The checks every mean estimator makes before it touches the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.contract import ConfigurationError

Array = NDArray[np.float64]


def as_rows(x: ArrayLike) -> tuple[Array, bool]:
    """``x`` as an (n, d) float64 array, and whether it came as a plain (n,) column."""
    try:
        rows = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"x must be an array of numbers of shape (n,) or (n, d). Got {type(x).__name__} that "
            "NumPy cannot read as float64 instead. Convert it first."
        ) from None  # it quotes a value
    if rows.ndim not in (1, 2) or rows.size == 0:
        raise ConfigurationError(
            f"x must have shape (n,) or (n, d) with n, d >= 1. Got shape {rows.shape} instead."
        )
    if not np.isfinite(rows).all():
        raise ConfigurationError(
            "x must be finite. Got NaN or infinity instead. Drop or impute such rows before, by a "
            "rule that looks at one row at a time."
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
