"""What a private metric is: a sum of bounded contributions of single rows, and how to read it.

Guarantee
---------
A metric's `total` is sum_i h(row i) where h reads row i and public settings only, and
|h(row)|_2 <= `bound`. Rows with odd values (NaN, infinite, a class that is not on the public list)
are put inside the bound row by row, or contribute nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from winsor.core.contract import ConfigurationError
from winsor.planning.cells import as_keys, as_numbers, codes_among

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """What is known of every private row; each metric takes the columns it needs."""

    targets: NDArray[Any] | None = None
    predictions: NDArray[Any] | None = None
    scores: NDArray[Any] | None = None
    losses: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None

    @staticmethod
    def of(**given: Any) -> Columns:
        """Read columns of one length, cell by cell (`winsor.planning.cells`)."""
        known = {name: as_keys(each) for name, each in given.items() if each is not None}
        for name in known.keys() & {"scores", "losses"}:
            known[name] = as_numbers(given[name], name, np.nan)
        lengths = {name: value.shape for name, value in known.items()}
        if (
            not known
            or len(set(lengths.values())) > 1
            or any(len(s) != 1 for s in lengths.values())
        ):
            raise ConfigurationError(
                "targets, predictions, scores, losses and groups must be columns of one length. "
                f"Got shapes {lengths} instead. Give one value per row in each."
            )
        return Columns(**known)

    @property
    def n(self) -> int:
        """The number of rows; public wherever winsor is told how many rows there are."""
        return next(len(value) for value in self._given().values())

    def need(self, name: str) -> NDArray[Any]:
        """Return a column, which must have been given."""
        value = getattr(self, name)
        if value is None:
            raise ConfigurationError(
                f"{name} must be given for this metric. Got None instead. Pass {name}=."
            )
        return np.asarray(value)

    def numbers(self, name: str, low: float, high: float, odd: float) -> Array:
        """Return a column clipped to [low, high] row by row; NaN becomes ``odd``."""
        return np.clip(as_numbers(self.need(name), name, odd), low, high)

    def where(self, chosen: NDArray[np.bool_]) -> Columns:
        """Return the rows that are chosen."""
        return replace(self, **{name: value[chosen] for name, value in self._given().items()})

    def _given(self) -> dict[str, NDArray[Any]]:
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True)
class Size:
    """How many rows a sum runs over: public (std 0), or itself a noisy count."""

    count: float
    std: float = 0.0

    @property
    def known(self) -> bool:
        """Return whether the count stands out of its noise, so that dividing by it makes sense."""
        return self.count > 4 * self.std and self.count >= 1


@dataclass(frozen=True)
class Estimate:
    """A metric's value with an interval for its value in the population.

    ``value``, ``low`` and ``high`` are numbers, or arrays of one shape (then each interval holds
    for its own entry). ``details`` are further readings of the same release, at no further cost.
    """

    value: Any
    low: Any
    high: Any
    level: float
    details: Mapping[str, Estimate] = field(default_factory=dict, repr=False)

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        if np.ndim(self.value) > 0:
            return f"{np.asarray(self.value)} ({self.level:.0%} intervals in low, high)"
        return f"{self.value:.4g} ({self.level:.0%} interval {self.low:.4g} to {self.high:.4g})"


def around(value: Any, std: Any, level: float, least: float = -np.inf, most: float = np.inf) -> Any:
    """Return value -+ z std inside [least, most]."""
    half = deviations(level) * np.asarray(std)
    low, high = np.clip(value - half, least, most), np.clip(value + half, least, most)
    middle = np.clip(value, least, most)
    if np.ndim(value) == 0:
        return Estimate(float(middle), float(low), float(high), level)
    return Estimate(middle, low, high, level)


def unknown(least: float, most: float, level: float) -> Estimate:
    """Return the interval of a value of which noise leaves nothing to say."""
    return Estimate((least + most) / 2, least, most, level)


def deviations(level: float) -> float:
    """Return z with P(|N(0,1)| <= z) = level."""
    return float(special.ndtri((1 + level) / 2))


class Metric(ABC):
    """One metric: how much a row contributes, and what the noisy sum says."""

    asks_for_size: bool
    """Whether `read` divides by the number of rows; in a group, that is a noisy count."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Length of the sum."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest L2 norm of a row's contribution."""

    @property
    def replace(self) -> float:
        """Largest L2 distance between two rows' contributions."""
        return 2 * self.bound

    @property
    @abstractmethod
    def proof(self) -> str:
        """Why `bound` holds, in words."""

    @abstractmethod
    def total(self, columns: Columns) -> Array:
        """Return (width,) sum of all rows' contributions: private until noise is added."""

    @abstractmethod
    def read(self, total: Array, std: float, size: Size, level: float) -> Any:
        """Read a noisy total with noise ``std`` on every entry."""


def cells_of(values: NDArray[Any], options: Sequence[Any]) -> NDArray[np.int64]:
    """Return the index of each value among the public options; -1 where it is none of them."""
    if len(set(options)) != len(options) or not len(options):
        raise ConfigurationError(
            f"the public list of classes or groups must name each once. Got {list(options)!r} "
            "instead."
        )
    return codes_among(values, options)


def bins_of(values: Array, low: float, high: float, bins: int) -> NDArray[np.int64]:
    """Return the index of the equal bin of [low, high] each (clipped) value falls into."""
    shares = (values - low) / (high - low)
    return np.minimum((shares * bins).astype(np.int64), bins - 1)


def tally(cells: NDArray[np.int64], count: int) -> Array:
    """Count the rows of each cell; a row in no cell (-1) is not counted."""
    return np.bincount(cells[cells >= 0], minlength=count).astype(np.float64)
