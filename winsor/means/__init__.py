"""Private means of heavy-tailed data (paper 2, Algorithms 2 and 3)."""

from __future__ import annotations

from winsor.means.clipped import clipped_mean
from winsor.means.iterative import iterative_mean
from winsor.means.radius import PrivateRadius
from winsor.means.result import MeanEstimate

__all__ = ["MeanEstimate", "PrivateRadius", "clipped_mean", "iterative_mean"]
