"""Private estimators and statistics of tables, in scikit-learn's style and as functions.

Estimators    linear models, generalised linear models, additive models, scaling, binning, encoding
Statistics    means, descriptions, bins and categories of columns
Partitions    the same over tables that are larger than a machine (`winsor.tables.partitions`)

Nothing here needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.tables.additive import *  # noqa: F403
    from winsor.tables.linear import *  # noqa: F403
    from winsor.tables.means import *  # noqa: F403
    from winsor.tables.ranges import *  # noqa: F403

_PACKAGES = ("additive", "linear", "means", "partitions", "ranges")
_NAMES = {
    "additive": ("PrivateAdditiveClassifier", "PrivateAdditiveRegressor", "Shape"),
    "linear": (
        "AveragedDescent",
        "FlatDescent",
        "Iterative",
        "PrivacyBudget",
        "PrivateGammaRegressor",
        "PrivateHuberRegressor",
        "PrivateLinearRegression",
        "PrivateLinearSVC",
        "PrivateLogisticRegression",
        "PrivateMedianRegressor",
        "PrivatePoissonRegressor",
        "PrivateRidge",
        "PrivateScaler",
        "Restarted",
        "RobustGD",
        "Ruled",
        "Simple",
        "SufficientStatistics",
        "Whitened",
        "total_guarantee",
    ),
    "means": (
        "Description",
        "MeanEstimate",
        "PrivateRadius",
        "WinsorisedMean",
        "averaged_mean",
        "clipped_mean",
        "describe",
        "iterative_mean",
        "winsorised_mean",
    ),
    "ranges": (
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
    ),
}
_HOMES = {name: f"winsor.tables.{home}" for home, names in _NAMES.items() for name in names}

__all__ = sorted([*_PACKAGES, *_HOMES])


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        elif name in _PACKAGES:
            value = import_module(f"winsor.tables.{name}")
        else:
            raise AttributeError(f"module 'winsor.tables' has no attribute {name!r}")
        globals()[name] = value  # found once
        return value


def __dir__() -> list[str]:
    return list(__all__)
