"""Losses that need more than a line: one value per row, each a function of its own row alone."""

from __future__ import annotations

from winsor.training.losses.adjusted import LogitAdjusted, ReleasedCounts, released_counts
from winsor.training.losses.ldam import LdamDrw, exponential_profile

__all__ = [
    "LdamDrw",
    "LogitAdjusted",
    "ReleasedCounts",
    "exponential_profile",
    "released_counts",
]
