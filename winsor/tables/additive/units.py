"""Units of a target, from its released distribution: post-processing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError
from winsor.tables.additive.knots import cut_ends
from winsor.tables.linear.glm import range_of_means
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]

ROOM = 0.1
"""How far beyond the released range of a target predictions may lie, as a share of its width."""


@dataclass(frozen=True)
class Units:
    """Targets count as (y - centre) / scale inside; few exceed ``high`` there."""

    centre: float
    scale: float
    high: float
    ends: tuple[float, float]
    """Predictions stay between these: no mean lies beyond what it is the mean of."""


def units_of(found: list[Distribution], linked: bool) -> Units:
    """Median and spread; for a log link, zero and the mean per exposure (the second of
    ``found``, if there is one)."""
    y = found[0]
    if not linked:
        q05, q16, middle, q84, q95 = y.quantile([0.05, 0.16, 0.5, 0.84, 0.95])
        spread = max((q84 - q16) / 2, (q95 - q05) / 3.3, (y.high - y.low) / 100, 1e-300)
        ends = y.low - ROOM * (y.high - y.low), y.high + ROOM * (y.high - y.low)
        high = (y.high - float(middle)) / float(spread)
        return Units(float(middle), float(spread), high, ends)
    mean, exposure = _mean(y), found[1] if len(found) > 1 else None
    if exposure is not None:
        mean /= _mean(exposure)
    ends = range_of_means(y, exposure, mean)
    return Units(0.0, mean, float(y.quantile(0.999)) / mean, ends)


def _mean(found: Distribution) -> float:
    """Of a positive column, without the long empty ends of outer cells."""
    values = cut_ends(found.quantile(np.linspace(0.0, 1.0, 65)))
    return max(float(np.mean((values[1:] + values[:-1]) / 2)), 1e-300)


def positive_column(name: str, given: Any, n: int) -> Array:
    column = np.asarray(given, dtype=np.float64)
    if column.shape != (n,) or not (np.isfinite(column).all() and (column > 0).all()):
        raise ConfigurationError(
            f"{name} must be a positive finite number for each of {n} rows. Got shape "
            f"{column.shape} instead, or values that are not. Drop rows without {name}."
        )
    return column
