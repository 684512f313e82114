"""What a private mean estimator returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from winsor.contract import Guarantee
from winsor.ledger.ledger import Ledger
from winsor.theory import MeanError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MeanEstimate:
    """A private mean, what it cost, and how far off it may be.

    ``error_bound`` is the paper's bound on the Euclidean error, term by term, holding with
    probability ``1 - beta`` under the moment assumption that was given; None if none was given.
    """

    estimate: Array
    guarantee: Guarantee
    error_bound: MeanError | None
    radius: float
    noise_std: float
    rho: float | None
    """zCDP parameter of the release, where it has one (no sampling, no other release)."""
    ledger: Ledger = field(repr=False)
    group_means: Array | None = field(default=None, repr=False)
    """The noisy means Q_1..Q_k that were released (iterative estimator only)."""
    updates: int | None = None
    """How many updates led to the estimate (iterative combination only)."""
