"""Heavy-tailed synthetic problems."""

from __future__ import annotations

from winsor.data.heavy import (
    NOISES,
    LinearProblem,
    claims_like,
    gaussian_design,
    heavy_linear,
    moment_rows,
)

__all__ = [
    "NOISES",
    "LinearProblem",
    "claims_like",
    "gaussian_design",
    "heavy_linear",
    "moment_rows",
]
