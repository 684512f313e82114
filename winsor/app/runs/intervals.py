"""Numbers as they are shown: means over seeds with Student's 95 % interval, bounds rounded up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any


@dataclass(frozen=True)
class Interval:
    """A mean over ``count`` runs; ``half`` is half the width of its 95 % interval, if any."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.mean:.4g}"
        if self.half < 1e-9 * abs(self.mean):
            return f"{self.mean:.4g} ± 0"
        return f"{self.mean:.4g} ± {self.half:.2g}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of independent runs. One run has no interval.

    >>> print(interval([0.90, 0.92, 0.91]))
    0.91 ± 0.025
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None, len(values))
    from scipy.special import stdtrit  # here: a list of tables needs no scipy

    quantile = float(stdtrit(len(values) - 1, 0.975))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, half, len(values))


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``count`` independent rows.

    >>> low, high = share_interval(0.9, 100)
    >>> round(low, 3), round(high, 3)
    (0.826, 0.945)
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(max(0.0, share * (1 - share)) / count + z * z / (4 * count**2))
    half = z * spread / (1 + z * z / count)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(ours: dict[int, float], theirs: dict[int, float]) -> Interval | None:
    """Mean difference over the seeds that both have: the same start, so less spread."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    return interval([ours[seed] - theirs[seed] for seed in common])


def rounded_up(value: float, digits: int = 3) -> str:
    """The smallest number of ``digits`` significant digits that is not below ``value``: a printed
    bound is still a bound.

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
