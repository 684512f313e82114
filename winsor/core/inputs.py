"""The checks every mean estimator makes before it touches the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core import randomness
from winsor.core.contract import ConfigurationError
from winsor.core.randomness import new_key

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


def as_key(random_state: int | bytes | None, *bound_to: Any) -> bytes:
    """A secret key; an integer gives a reproducible one, which protects nobody who knows it.

    A key from an integer belongs to ``bound_to``, data and settings: with others, noise differs.
    """
    if isinstance(random_state, bytes):
        return random_state
    if random_state is not None and not isinstance(random_state, int | np.integer):
        raise ConfigurationError(
            "random_state must be None (a fresh secret key), an int (reproducible) or a key of "
            f"bytes. Got {random_state!r} instead."
        )
    if random_state is None:
        return new_key()
    return randomness.bound_key(new_key(int(random_state)), *bound_to)
