"""The one clipping formula, and the check of a rule's positive constants."""

from __future__ import annotations

import math

from torch import Tensor

from winsor.contract import ConfigurationError

ROUNDING = 1e-5
"""Clip to C/(1+ROUNDING): float32 norms carry relative errors near 1e-6, and the bound must hold
for the numbers that are really summed."""


def clip_weights(norms: Tensor, threshold: float) -> Tensor:
    """min(1, C/|g|) for each row, as C/max(C, |g|): safe at |g| = 0."""
    clip = threshold / (1 + ROUNDING)
    return norms.clamp_min(clip).reciprocal_().mul_(clip)


def positive(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name} must be a positive finite number. Got {value!r} instead.")
