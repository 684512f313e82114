"""What the options of all methods share: nested parameters for grid search, and their checks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from winsor.contract import ConfigurationError
from winsor.linear.task import Session, Solution, Task


class Method(BaseEstimator, ABC):
    """How to fit a linear model privately. Subclasses are dataclasses whose fields are options.

    A scikit-learn object only so that ``method__learning_rate`` works in `GridSearchCV`.
    """

    continues = False
    """True if `partial_fit` may go on from the present parameters with further records."""

    @abstractmethod
    def solve(self, task: Task, session: Session) -> Solution: ...

    def _check(self, **optional: Any) -> None:
        """Each value must be None or a positive finite number."""
        for name, value in optional.items():
            if value is not None:
                check_positive(name, value)


def check_positive(name: str, value: Any) -> float:
    number = isinstance(value, int | float | np.integer | np.floating)
    if not (number and math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name} must be a positive finite number. Got {value!r} instead.")
    return float(value)


def check_steps(steps: float | None, epochs: float | None, rate: float, default: int) -> int:
    """The number of steps from ``steps``, or ``epochs`` at a sampling rate, or a default."""
    if steps is not None and epochs is not None:
        raise ConfigurationError(
            f"give steps or epochs, not both. Got steps={steps!r}, epochs={epochs!r} instead."
        )
    if steps is not None:
        whole = isinstance(steps, int | np.integer) and steps >= 1
        if not whole:
            raise ConfigurationError(
                f"steps must be a positive whole number. Got {steps!r} instead."
            )
        return int(steps)
    if epochs is not None:
        return max(1, math.ceil(check_positive("epochs", epochs) / rate - 1e-9))
    return default
