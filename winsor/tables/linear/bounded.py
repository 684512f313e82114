"""What a fit with bounds column by column adds to a task and to its solution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.tables.linear.scaled import Scaling
from winsor.tables.linear.task import LinearTask, Solution

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BoundedTask(LinearTask):
    """A `LinearTask` with ``bounds`` (d, 2) in the design's units, NaN where they are not known."""

    bounds: Array = field(default_factory=lambda: np.empty((0, 2)))
    target_range: tuple[float, float] | None = None
    """Public, in raw units: of the targets here most lie in [-1, 1], then."""
    learn_threshold: bool = False
    """The Huber threshold is to follow the scale of y."""


@dataclass(frozen=True)
class BoundedSolution(Solution):
    """A `Solution` found on winsorised columns, which predictions then winsorise too."""

    scaling: Scaling | None = None
    statistics: Any = None
    """Released sufficient statistics: `winsor.tables.linear.sufficient.Statistics`, or None."""
