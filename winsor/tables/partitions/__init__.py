"""Tables larger than a machine: bounded sums of each partition, one release on the driver.

source.py      partitions, and passes over them: pyarrow datasets, loaders over any map, Dask
on_dask.py     where a cluster sums them
statistics.py  the clipped mean, quantiles, second moments, metrics
fits.py        `PrivateScaler`, `PrivateRidge` and `PrivateLinearRegression` from sufficient
               statistics, additive models
"""

from __future__ import annotations

from winsor.tables.partitions.fits import fit_additive, fit_ridge, fit_scaler
from winsor.tables.partitions.source import Partitions
from winsor.tables.partitions.statistics import (
    ColumnQuantiles,
    Moments,
    clipped_mean,
    measure,
    quantiles,
    second_moments,
)

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
