"""Verdicts from numbers: which of two measured means is larger, as far as their intervals tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scipy import stats
from winsor_reproductions.reproduction import Line, Measured


def order(first: Measured, second: Measured) -> int:
    """1 or -1 if ``first`` is larger or smaller, by Welch's test at 5 per cent, else 0.

    A single seed has no interval; then only the sign of the difference is left, and the verdict
    should say so.
    """
    gap = first.mean - second.mean
    allowance = _allowance(first, second)
    return (gap > allowance) - (gap < -allowance)


def _allowance(first: Measured, second: Measured) -> float:
    """Half the width of the 95 per cent interval of the difference."""
    if first.half_width is None or second.half_width is None:
        return 0.0
    freedom = [measured.seeds - 1 for measured in (first, second)]
    errors = [
        width / float(stats.t.ppf(0.975, df))
        for width, df in zip((first.half_width, second.half_width), freedom, strict=True)
    ]
    error = math.hypot(*errors)
    if error == 0:
        return 0.0
    degrees = error**4 / sum(e**4 / df for e, df in zip(errors, freedom, strict=True))
    return float(stats.t.ppf(0.975, degrees)) * error


def judged(pairs: Sequence[tuple[Measured, Measured]]) -> str:
    """Is the first of every pair ahead: confirmed, contradicted, or neither?"""
    if any(measured.seeds == 1 for pair in pairs for measured in pair):
        return "undecided (one seed)"
    orders = [order(*pair) for pair in pairs]
    if min(orders) > 0:
        return "confirmed"
    return "contradicted" if -1 in orders else "not confirmed"


def tally(pairs: Iterable[tuple[Measured, Measured]]) -> str:
    """How often the first of a pair is ahead of, behind, or level with the second."""
    orders = [order(*pair) for pair in pairs]
    ahead, behind = orders.count(1), orders.count(-1)
    return f"ahead on {ahead}, behind on {behind}, level on {orders.count(0)} of {len(orders)}"


def span(values: Iterable[float | None]) -> str:
    """The range of certified epsilons, for a sentence."""
    known = [value for value in values if value is not None]
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return low if low == high else f"{low} to {high}"


def by_label(lines: Iterable[Line], **wanted: str) -> Line | None:
    """The line whose label holds all of ``wanted``, if there is one."""
    for line in lines:
        if all(line.label.get(name) == value for name, value in wanted.items()):
            return line
    return None
