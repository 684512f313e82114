"""Private estimators and statistics of tables, in scikit-learn's style and as functions.

Estimators    linear models, generalised linear models, additive models, scaling, binning, encoding
Statistics    means, descriptions, bins and categories of columns
Partitions    the same over tables that are larger than a machine (`winsor.tables.partitions`)

Names load on first use. Nothing here needs torch, but clipping rules as methods (`Ruled`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.planning.shared_budget import PrivacyBudget
    from winsor.planning.total import total_guarantee
    from winsor.tables import additive, linear, means, partitions, ranges
    from winsor.tables.additive.estimators import (
        PrivateAdditiveClassifier,
        PrivateAdditiveRegressor,
    )
    from winsor.tables.additive.shapes import Shape
    from winsor.tables.inputs import as_bounds
    from winsor.tables.linear.averaged import AveragedDescent, Restarted
    from winsor.tables.linear.classifiers import PrivateLinearSVC, PrivateLogisticRegression
    from winsor.tables.linear.flat import FlatDescent
    from winsor.tables.linear.glm import PrivateGammaRegressor, PrivatePoissonRegressor
    from winsor.tables.linear.regressors import (
        PrivateHuberRegressor,
        PrivateLinearRegression,
        PrivateMedianRegressor,
        PrivateRidge,
    )
    from winsor.tables.linear.robust_gd import RobustGD
    from winsor.tables.linear.ruled import Ruled
    from winsor.tables.linear.simple import Iterative, Simple
    from winsor.tables.linear.sufficient import SufficientStatistics
    from winsor.tables.linear.whitened import Whitened
    from winsor.tables.means.averaged import averaged_mean
    from winsor.tables.means.clipped import clipped_mean
    from winsor.tables.means.described import Description, describe
    from winsor.tables.means.iterative import iterative_mean
    from winsor.tables.means.radius import PrivateRadius
    from winsor.tables.means.result import MeanEstimate
    from winsor.tables.means.winsorised import WinsorisedMean, winsorised_mean
    from winsor.tables.ranges.bins import BinEdges, Bins, codes, private_bins
    from winsor.tables.ranges.categories import FoundCategories, private_categories
    from winsor.tables.ranges.distribution import Distribution
    from winsor.tables.ranges.zoom import Zoom
    from winsor.tables.transformers import PrivateBinner, PrivateEncoder, PrivateScaler

_NAMES = {
    "additive.estimators": ("PrivateAdditiveClassifier", "PrivateAdditiveRegressor"),
    "additive.shapes": ("Shape",),
    "inputs": ("as_bounds",),
    "linear.averaged": ("AveragedDescent", "Restarted"),
    "linear.classifiers": ("PrivateLinearSVC", "PrivateLogisticRegression"),
    "linear.flat": ("FlatDescent",),
    "linear.glm": ("PrivateGammaRegressor", "PrivatePoissonRegressor"),
    "linear.regressors": (
        "PrivateHuberRegressor",
        "PrivateLinearRegression",
        "PrivateMedianRegressor",
        "PrivateRidge",
    ),
    "linear.robust_gd": ("RobustGD",),
    "linear.ruled": ("Ruled",),
    "linear.simple": ("Iterative", "Simple"),
    "linear.sufficient": ("SufficientStatistics",),
    "linear.whitened": ("Whitened",),
    "means.averaged": ("averaged_mean",),
    "means.clipped": ("clipped_mean",),
    "means.described": ("Description", "describe"),
    "means.iterative": ("iterative_mean",),
    "means.radius": ("PrivateRadius",),
    "means.result": ("MeanEstimate",),
    "means.winsorised": ("WinsorisedMean", "winsorised_mean"),
    "ranges.bins": ("BinEdges", "Bins", "codes", "private_bins"),
    "ranges.categories": ("FoundCategories", "private_categories"),
    "ranges.distribution": ("Distribution",),
    "ranges.zoom": ("Zoom",),
    "transformers": ("PrivateBinner", "PrivateEncoder", "PrivateScaler"),
    "winsor.planning.shared_budget": ("PrivacyBudget",),
    "winsor.planning.total": ("total_guarantee",),
}
"""Public names by module: of this package, unless it is written out."""
_PACKAGES = ("additive", "linear", "means", "partitions", "ranges")
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "AveragedDescent",
    "BinEdges",
    "Bins",
    "Description",
    "Distribution",
    "FlatDescent",
    "FoundCategories",
    "Iterative",
    "MeanEstimate",
    "PrivacyBudget",
    "PrivateAdditiveClassifier",
    "PrivateAdditiveRegressor",
    "PrivateBinner",
    "PrivateEncoder",
    "PrivateGammaRegressor",
    "PrivateHuberRegressor",
    "PrivateLinearRegression",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateMedianRegressor",
    "PrivatePoissonRegressor",
    "PrivateRadius",
    "PrivateRidge",
    "PrivateScaler",
    "Restarted",
    "RobustGD",
    "Ruled",
    "Shape",
    "Simple",
    "SufficientStatistics",
    "Whitened",
    "WinsorisedMean",
    "Zoom",
    "additive",
    "as_bounds",
    "averaged_mean",
    "clipped_mean",
    "codes",
    "describe",
    "iterative_mean",
    "linear",
    "means",
    "partitions",
    "private_bins",
    "private_categories",
    "ranges",
    "total_guarantee",
    "winsorised_mean",
]


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return import_module(f"winsor.tables.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'winsor.tables' has no attribute {name!r}")
        home = _HOMES[name]
        home = home if home.startswith("winsor.") else f"winsor.tables.{home}"
        value = globals()[name] = getattr(import_module(home), name)  # found once
        return value


def __dir__() -> list[str]:
    return list(__all__)
