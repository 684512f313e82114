"""Printing bounds: rounded up, so that the printed number is still a bound."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def rounded_up(value: float, digits: int = 3) -> str:
    """The smallest number of ``digits`` significant digits that is not below ``value``.

    >>> rounded_up(3.5849), rounded_up(3.0), rounded_up(0.00012341), rounded_up(1234.5)
    ('3.59', '3.00', '0.000124', '1240')
    """
    if not math.isfinite(value):
        return "infinite"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value))
    if rounded == 0:
        return "0"
    places = max(0, digits - 1 - rounded.adjusted())
    return f"{rounded:.{places}f}"
