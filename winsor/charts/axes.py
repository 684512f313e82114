"""Axes: the range of the data, round ticks, and the way from values to pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Maps [low, high] to [0, 1], linearly or by logarithm."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Position of a value, from 0 to 1; values below a logarithmic axis are put at 0."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        value = max(value, self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)

    def labels(self) -> list[str]:
        """Texts of the ticks."""
        return [_label(tick, self._digits) for tick in self.ticks]

    @property
    def _digits(self) -> int | None:
        """Decimals that tell neighbouring ticks apart; None where powers of ten do."""
        if self.log or len(self.ticks) < 2:
            return None
        step = self.ticks[1] - self.ticks[0]
        decimals = -math.floor(math.log10(step) + 1e-9)
        halves = round(step * 10.0**decimals, 6) % 1 != 0  # steps of 2.5 need one more
        return max(0, decimals + halves)


def axis(values: Sequence[float], log: bool = False, from_zero: bool = False) -> Axis:
    """Make an axis that shows all finite values, with 4 to 8 ticks; whole numbers get whole ones.

    >>> axis([0.0, 0.94]).ticks
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    >>> axis([0, 12]).ticks
    (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
    """
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if not finite:
        return Axis(1.0, 10.0, True, (1.0, 10.0)) if log else Axis(0.0, 1.0, False, (0.0, 1.0))
    low, high = min(finite), max(finite)
    if log:
        return _log_axis(low, high)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-12 * max(abs(high), 1e-300):
        pad = abs(high) / 2 or 0.5
        low, high = low - pad, high + pad
    counts = high - low >= 4 and all(value == round(value) for value in finite)
    step = _whole_step((high - low) / 5) if counts else _round_step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{k * step:.12g}") for k in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], False, ticks)


def axis_between(low: float, high: float, log: bool = False) -> Axis:
    """Make an axis from ``low`` to ``high`` as they are, with the round ticks that lie between.

    >>> axis_between(0.0, 1.3).ticks
    (0.0, 0.5, 1.0)
    """
    wide = axis((low, high), log)
    inside = tuple(tick for tick in wide.ticks if low <= tick <= high)
    return Axis(low, high, log, inside if len(inside) > 1 else (low, high))


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))


def _whole_step(rough: float) -> float:
    power = 10.0 ** max(0, math.floor(math.log10(rough)))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= 0.8 * rough)


def _log_axis(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    if last - first == 1:
        ticks = [m * 10.0**first for m in (1, 2, 5, 10)]
    else:
        stride = -(-(last - first) // 7)
        ticks = [10.0**k for k in range(first, last + 1, stride)]
    return Axis(10.0**first, max(10.0**last, ticks[-1]), True, tuple(ticks))


def _label(value: float, digits: int | None) -> str:
    if digits is not None and abs(value) < 1e5:
        return f"{value:.{digits}f}"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}"
