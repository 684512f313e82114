"""A clipping radius from a private quantile of the norms, by noisy binary search.

    grid   r_0 = lower, ..., r_G = upper, in equal ratios (public)
    step   c = sum_i (1[|x_i| <= r_mid] - level) + N(0, s^2);  c < 0: go up, else: go down
    after  ceil(log2(G+1)) steps: the smallest grid radius that the search did not exclude

For the mean itself the best radius leaves about nm sqrt(d) records outside: the noise of a clipped
mean grows with the radius at rate nm sqrt(d)/n, its bias falls at rate P(|x| > R); where the two
are equal the sum is smallest (Huang, Liang & Yi 2021 for the same balance).

Guarantee
---------
Each step adds up numbers in [-level, 1 - level], one per record, at a threshold that depends on
released counts only: sensitivity max(level, 1 - level) under add/remove, 1 under replace-one.
The centred count needs no division by n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import positive, probability
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier


@dataclass(frozen=True)
class PrivateRadius:
    """Find the radius between the public bounds ``lower`` and ``upper`` at run time.

    ``level`` is the quantile of the norms; None balances bias and noise. ``share`` of the budget
    (in units of 1/nm^2) pays for the search. ``ratio`` is the resolution of the grid.
    """

    lower: float
    upper: float
    level: float | None = None
    share: float = 0.1
    ratio: float = 1.25

    def __post_init__(self) -> None:
        positive("lower", self.lower)
        positive("upper", self.upper)
        if self.upper <= self.lower:
            raise ConfigurationError(
                f"upper must exceed lower = {self.lower!r}. Got {self.upper!r} instead."
            )
        if self.level is not None:
            probability("level", self.level)
        probability("share", self.share)
        if not (math.isfinite(self.ratio) and self.ratio > 1):
            raise ConfigurationError(f"ratio must exceed 1. Got {self.ratio!r} instead.")

    def grid(self) -> NDArray[np.float64]:
        """Return the public radii that are searched."""
        count = 1 + math.ceil(math.log(self.upper / self.lower) / math.log(self.ratio))
        return np.geomspace(self.lower, self.upper, max(2, count))

    @property
    def steps(self) -> int:
        """Number of counts that the search releases."""
        return math.ceil(math.log2(len(self.grid())))

    def sensitivity(self, level: float) -> Sensitivity:
        """Return how far a record moves the centred count."""
        return Sensitivity(
            max(level, 1 - level), 1.0, "centred count: one number in [-level, 1-level] per record"
        )

    def payment(self, main: Payment, target: Target, n: int, d: int) -> tuple[Payment, float]:
        """Return the search's line of the plan beside ``main``, and the quantile it will look for.

        ``main`` alone at the target has multiplier nm, one Gaussian release alone has 1/mu; the
        search's K steps together get mu^2 ``share``.
        """
        alone = noise_multiplier([main], target)
        whole = Payment(FullBatch(n), Sensitivity(1.0, 2.0, "yardstick"), 1)
        single = noise_multiplier([whole], target)  # = 1/mu relative to the add/remove shift
        count_noise = single * math.sqrt(self.steps / self.share)
        level = self.level
        if level is None:
            outside = max(single * math.sqrt(d), 2 * count_noise)
            level = max(0.5, 1 - outside / n)
        return (
            Payment(FullBatch(n), self.sensitivity(level), self.steps, scale=count_noise / alone),
            level,
        )

    def search(
        self, norms: NDArray[np.float64], level: float, door: PrepaidDoor, mechanism: Gaussian
    ) -> float:
        """Run the search; ``door`` is paid for every step before the first count is taken."""
        grid = self.grid()
        sampler = FullBatch(len(norms))
        receipt = door.pay(mechanism, sampler, self.sensitivity(level), self.steps, 1)
        low, high = 0, len(grid) - 1
        for _ in range(self.steps):  # the number of releases never depends on their values
            middle = (low + high) // 2
            count = np.array([np.count_nonzero(norms <= grid[middle]) - level * len(norms)])
            if receipt.release(count)[0] < 0:
                low = min(middle + 1, high)
            else:
                high = middle
        return float(grid[high])
