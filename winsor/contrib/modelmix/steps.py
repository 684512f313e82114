"""Numbers that change at given steps: 0.3, or ((0, 0.3), (100, 0.15)) for 0.15 from step 100 on."""

from __future__ import annotations

import math

from winsor.core.contract import ConfigurationError

Stretches = tuple[tuple[int, float], ...]


def stretches(name: str, value: float | Stretches | None, *, above_zero: bool = False) -> Stretches:
    """``value`` as (first step, number) pairs, checked.

    >>> stretches("tau", 0.5)
    ((0, 0.5),)
    """
    if isinstance(value, int | float):
        found: Stretches = ((0, float(value)),)
    else:
        found = tuple((int(step), float(number)) for step, number in value or ())
    firsts = [first for first, _ in found]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise ConfigurationError(
            f"{name} must be a number or ((0, value), (later step, value), ...) in order. "
            f"Got {value!r} instead."
        )
    for _, number in found:
        if not (math.isfinite(number) and number >= 0) or (above_zero and number == 0):
            least = "above 0" if above_zero else "at least 0"
            raise ConfigurationError(f"{name} must be finite and {least}. Got {number!r} instead.")
    return found


def at(found: Stretches, step: int) -> float:
    """The number in force at ``step``.

    >>> at(((0, 0.3), (100, 0.15)), 99)
    0.3
    """
    return next(number for first, number in reversed(found) if first <= step)
