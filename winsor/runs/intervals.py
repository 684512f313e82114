"""Means over seeds, with Student's 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats


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
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, half, len(values))


def paired_difference(ours: dict[int, float], theirs: dict[int, float]) -> Interval | None:
    """Mean difference over the seeds that both have: the same start, so less spread."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    return interval([ours[seed] - theirs[seed] for seed in common])
