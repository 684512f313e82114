"""Private means of heavy-tailed data (paper 2, Algorithms 2 and 3; paper 4, estimator (7))."""

from __future__ import annotations

from winsor.tables.means.averaged import averaged_mean
from winsor.tables.means.clipped import clipped_mean
from winsor.tables.means.described import Description, describe
from winsor.tables.means.iterative import iterative_mean
from winsor.tables.means.radius import PrivateRadius
from winsor.tables.means.result import MeanEstimate
from winsor.tables.means.winsorised import WinsorisedMean, winsorised_mean

__all__ = [
    "Description",
    "MeanEstimate",
    "PrivateRadius",
    "WinsorisedMean",
    "averaged_mean",
    "clipped_mean",
    "describe",
    "iterative_mean",
    "winsorised_mean",
]
