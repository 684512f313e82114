"""Tables larger than a machine: bounded sums of each partition, one release on the driver.

source.py     partitions: pyarrow datasets out of core, loaders over any map, Dask
on_dask.py    where a cluster sums them
passes.py     several passes over the same rows
mean.py       the clipped mean
moments.py    means and second moments of bounded rows: all that least squares needs
quantiles.py  quantiles and bins of every column
scaler.py     `PrivateScaler`
ridge.py      `PrivateRidge` and `PrivateLinearRegression` from sufficient statistics
additive.py   `PrivateAdditiveRegressor` and `PrivateAdditiveClassifier`
metrics.py    every metric of `winsor.metrics`
"""

from __future__ import annotations

from winsor.tables.partitions.additive import fit_additive
from winsor.tables.partitions.column_quantiles import ColumnQuantiles, quantiles
from winsor.tables.partitions.mean import clipped_mean
from winsor.tables.partitions.metrics import measure
from winsor.tables.partitions.moments import Moments, second_moments
from winsor.tables.partitions.ridge import fit_ridge
from winsor.tables.partitions.scaler import fit_scaler
from winsor.tables.partitions.source import Partitions

__all__ = [
    "ColumnQuantiles",
    "Moments",
    "Partitions",
    "clipped_mean",
    "fit_additive",
    "fit_ridge",
    "fit_scaler",
    "measure",
    "quantiles",
    "second_moments",
]
