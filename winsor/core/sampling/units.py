"""Units: who is protected, when a person has several rows.

Samplers draw units. A unit that is drawn brings at most ``rows_per_unit`` of its rows: all, if it
has no more; otherwise as many as that, chosen anew at every visit, by the run's key and the unit
alone, so that no unit's rows depend on who else was drawn.

The number of units is public as the number of rows is otherwise; how many rows a unit has is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import Indices


class UnitRows:
    """The rows of every unit, from one identifier per row."""

    def __init__(self, ids: Sequence[Any] | NDArray[Any], rows_per_unit: int) -> None:
        self.rows_per_unit = whole("rows_per_unit", rows_per_unit)
        places = _places(ids)
        self.places = places
        """The number of each row's unit."""
        self.n_rows = len(places)
        self.n = int(places.max()) + 1
        self._order = np.argsort(places, kind="stable").astype(np.int64)
        self._sizes = np.bincount(places)
        self._ends = np.concatenate([[0], np.cumsum(self._sizes)])
        self._last: tuple[bytes, tuple[Indices, tuple[int, ...]]] | None = None

    def fingerprint(self, key: bytes) -> str:
        """Names whose rows are whose, to those who know the key."""
        return hashlib.blake2b(self.places.tobytes(), key=key, digest_size=16).hexdigest()

    def unit_of(self, row: int) -> int:
        """Return the number of the unit that ``row`` belongs to."""
        return int(self.places[row])

    def of(self, unit: int) -> Indices:
        """All rows of a unit."""
        return self._order[self._ends[unit] : self._ends[unit + 1]]

    def all_chosen(self, units: Indices) -> tuple[Indices, tuple[int, ...]] | None:
        """The rows of all ``units``, one unit after the other, and how many each brings; None if
        one of them has to choose among its rows."""
        drawn = units.tobytes()
        if self._last is not None and self._last[0] == drawn:  # full batches: all, every time
            return self._last[1]
        sizes = self._sizes[units]
        if sizes.max(initial=0) > self.rows_per_unit:
            return None
        last = np.cumsum(sizes)
        places = np.arange(last[-1] if len(last) else 0)
        places += np.repeat(self._ends[units] - last + sizes, sizes)
        found = self._order[places], tuple(sizes.tolist())
        self._last = drawn, found
        return found

    def chosen(self, unit: int, key: bytes, step: int) -> Indices:
        """The rows that a unit brings to a step."""
        rows = self.of(unit)
        if len(rows) <= self.rows_per_unit:
            return rows
        coins = stream(key, f"rows of unit {unit}", step)
        return np.sort(coins.choice(rows, self.rows_per_unit, replace=False))


MISSING = ("", "nan", "NaN", "NaT", "None", "<NA>")
"""Texts that missing identifiers become on their way through NumPy and pandas."""


def _places(ids: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
    """Units numbered from 0, by identifier."""
    values = np.asarray(ids)
    if values.ndim != 1 or len(values) == 0:
        raise ConfigurationError(
            "unit must give one identifier for each row. Got something of shape "
            f"{values.shape} instead. Pass a list or an array as long as the dataset."
        )
    if np.any(np.ma.getmask(ids)) or not _all_known(values):
        raise ConfigurationError(
            "unit must give an identifier for every row: numbers, dates or texts. Got None, NaN "
            "or the like for some instead. Make each such row a unit of its own, or leave it out."
        )
    try:
        return np.unique(values, return_inverse=True)[1].astype(np.int64).reshape(-1)
    except TypeError:
        raise ConfigurationError(
            "unit must give identifiers that can be sorted. Got others instead. Make them texts."
        ) from None  # it may quote one


def _all_known(values: NDArray[Any]) -> bool:
    """Return whether every identifier is one value that is equal to itself: a missing one would be
    a person of its own, or one that strangers share."""
    if (kind := values.dtype.kind) in "US":
        return not np.isin(values, np.array(MISSING).astype(values.dtype.type)).any()
    if kind != "O":
        return kind != "V" and bool((values == values).all())
    return all(map(_known, values))


def _known(one: Any) -> bool:
    single = isinstance(one, str | bytes) or not hasattr(one, "__len__")
    try:
        return single and one is not None and bool(one == one) and one not in MISSING
    except Exception:  # NA is neither equal nor different, and a signalling NaN raises
        return False
