"""One private fit: the problem, what may be spent, and the door."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.contract import ConfigurationError, PrivacyLeakWarning, Sensitivity
from winsor.grads.glm import Design, Loss
from winsor.means.budget import Payment, Target, noise_multiplier
from winsor.mechanisms.gaussian import Gaussian
from winsor.release.prepaid import PrepaidDoor, Receipt
from winsor.sampling.samplers import FullBatch

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearTask:
    """Minimise the mean loss plus alpha |w|^2 / 2 over theta, from ``start``."""

    design: Design
    y: Array
    loss: Loss
    alpha: float
    start: Array
    row_bound: float | None
    """Public bound on |(x, 1)| in the design's units, if the user gave one."""

    @property
    def n(self) -> int:
        return int(self.design.n)

    @property
    def parameters(self) -> int:
        return self.start.size

    def reach(self) -> float:
        """A bound on |(x, 1)|: the user's, else the largest in the data, with a warning."""
        if self.row_bound is not None:
            return self.row_bound
        warnings.warn(
            "feature_bound is not given, so this method's parameters are derived from the largest "
            "row norm of the data. The certified guarantee does not cover that look at the data. "
            "Give feature_bound (a public bound on the norm of a row), or the parameters by hand.",
            PrivacyLeakWarning,
            stacklevel=2,
        )
        return float(self.design.norms.max())

    def smoothness(self) -> float:
        """L of the mean loss: curvature in the score times the squared row bound."""
        return self.loss.curvature * self.reach() ** 2

    def deviation(self) -> float:
        """A bound on the standard deviation of per-sample gradients, for losses that have one."""
        if not np.isfinite(self.loss.slope):
            raise ConfigurationError(
                "deviation must be given for a squared loss: its gradients have no bound. Got None "
                "instead. Give the size of a typical per-sample gradient, or use a Huber loss."
            )
        return self.loss.slope * self.reach()


@dataclass(frozen=True)
class Session:
    """The budget and the door of one fit. ``noise_multiplier`` overrides the budget."""

    door: PrepaidDoor
    target: Target
    key: bytes
    noise_multiplier: float | None = None

    def multiplier(self, plan: Sequence[Payment]) -> float:
        """Noise over sensitivity for ``plan``, calibrated to the target or given by hand."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return noise_multiplier(plan, self.target)

    def pay(self, plan: Payment, shape: tuple[int, ...]) -> Receipt:
        """Calibrate the noise of a run that is all ``plan``, and pay for its releases."""
        mechanism = Gaussian(self.multiplier([plan]))
        return self.door.pay(mechanism, plan.sampler, plan.sensitivity, plan.steps, shape)

    def yardstick(self, n: int) -> float:
        """mu of the one Gaussian release that would spend the whole budget: how much signal the
        budget allows, independent of the method. Uses public values only."""
        single = Payment(FullBatch(n), Sensitivity(1.0, 2.0, "yardstick"), 1)
        return 1 / self.multiplier([single])


@dataclass(frozen=True)
class Solution:
    """Parameters in the design's units, and how many private steps they took."""

    theta: Array
    steps: int
