"""Ranges, quantiles, bins and categories of columns, learnt inside the budget."""

from __future__ import annotations

from winsor.ranges.binner import BinEdges, Bins, PrivateBinner, codes, private_bins
from winsor.ranges.bounds import as_bounds
from winsor.ranges.categories import FoundCategories, private_categories
from winsor.ranges.distribution import Distribution
from winsor.ranges.encoder import PrivateEncoder
from winsor.ranges.zoom import Zoom

__all__ = [
    "BinEdges",
    "Bins",
    "Distribution",
    "FoundCategories",
    "PrivateBinner",
    "PrivateEncoder",
    "Zoom",
    "as_bounds",
    "codes",
    "private_bins",
    "private_categories",
]
