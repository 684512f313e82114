"""Heavy-tailed synthetic problems, and rows that are larger than memory."""

from __future__ import annotations

from winsor.data.heavy import (
    NOISES,
    LinearProblem,
    claims_like,
    gaussian_design,
    heavy_linear,
    moment_rows,
)
from winsor.data.mapped import MappedRows, npy_from_parquet

__all__ = [
    "NOISES",
    "LinearProblem",
    "MappedRows",
    "claims_like",
    "gaussian_design",
    "heavy_linear",
    "moment_rows",
    "npy_from_parquet",
]
