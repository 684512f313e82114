"""Ranges, quantiles, bins and categories of columns, learnt inside the budget."""

from __future__ import annotations

from winsor.tables.ranges.binner import BinEdges, Bins, PrivateBinner, codes, private_bins
from winsor.tables.ranges.bounds import as_bounds
from winsor.tables.ranges.categories import FoundCategories, private_categories
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.encoder import PrivateEncoder
from winsor.tables.ranges.zoom import Zoom

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
