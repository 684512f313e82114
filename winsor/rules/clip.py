"""The one clipping formula, and the check of a rule's positive constants."""

from __future__ import annotations

import math

from torch import Tensor

from winsor.contract import ConfigurationError

ROUNDING = 1e-5
"""Clip to C/(1+ROUNDING): float32 norms carry relative errors near 1e-6, and the bound must hold
for the numbers that are really summed."""

SMALLEST = 1e-37
"""Shorter norms are not divided by: in float32 the quotient would overflow."""


def clip_weights(norms: Tensor, threshold: float) -> Tensor:
    """min(1, C/|g|) for each row, as C/max(C, |g|): safe at |g| = 0, and for any C > 0."""
    clip = threshold / (1 + ROUNDING)
    return norms.clamp_min(max(clip, SMALLEST)).reciprocal_().mul_(clip)


def positive(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name} must be a positive finite number. Got {value!r} instead.")
