"""Heavy-tailed synthetic problems, and readers for local copies of public datasets."""

from __future__ import annotations

from winsor.data.heavy import (
    NOISES,
    LinearProblem,
    claims_like,
    gaussian_design,
    heavy_linear,
    moment_rows,
)
from winsor.data.local import DATASETS, Table, load

__all__ = [
    "DATASETS",
    "NOISES",
    "LinearProblem",
    "Table",
    "claims_like",
    "gaussian_design",
    "heavy_linear",
    "load",
    "moment_rows",
]
