"""Range checks shared by the theorem formulas."""

from __future__ import annotations

import math

from winsor.contract import ConfigurationError


def positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigurationError(
                f"{name} must be a positive finite number. Got {value!r} instead."
            )


def probability(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < 1:
            raise ConfigurationError(
                f"{name} must be a probability strictly between 0 and 1. Got {value!r} instead."
            )
