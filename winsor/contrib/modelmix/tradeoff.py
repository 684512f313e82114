"""Choosing ModelMix's threshold: what epsilon it buys, and what noise it costs.

For every tau/eta and p of a grid: the certified epsilon of the run, and next to the standard
deviation of the Gaussian noise the one that mixing adds to each coordinate, w/sqrt(12), both in the
units of the averaged gradient. A third number keeps the comparison honest: the epsilon of plain
DP-SGD if that extra variance were Gaussian noise instead.

No data are read; this is arithmetic on a planned run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from winsor.accounting.account import account
from winsor.accounting.widened.gaussian import MixedGaussianDpEvent
from winsor.contract import ConfigurationError

DEFAULT_WIDTHS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Widths of the grid in units of the clipping bound of the averaged gradient."""

DEFAULT_COORDINATES = (1, 25, 100)


@dataclass(frozen=True)
class PlannedRun:
    """A run of DP-SGD to which mixing may be added.

    Gradients are averaged: ``max_grad_norm`` bounds one record's gradient, and the sum is divided
    by the expected ``batch_size``. Leave ``batch_size`` at 1 to think in sums.
    """

    sampling_probability: float
    noise_multiplier: float
    steps: int
    delta: float
    max_grad_norm: float = 1.0
    batch_size: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "batch_size"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name} must be positive. Got {value!r} instead.")

    @property
    def clip(self) -> float:
        """Most that one record moves the averaged gradient."""
        return self.max_grad_norm / self.batch_size

    @property
    def gaussian_sd(self) -> float:
        """Standard deviation of the Gaussian noise on a coordinate of the averaged gradient."""
        return self.noise_multiplier * self.clip

    def epsilon(self, event: DpEvent) -> float:
        """Certified epsilon of the run when every step is ``event``."""
        return account([(event, self.steps)], self.delta).epsilon

    def plain_step(self, noise_multiplier: float) -> DpEvent:
        return PoissonSampledDpEvent(self.sampling_probability, GaussianDpEvent(noise_multiplier))

    def mixed_step(self, width: float, coordinates: float) -> MixedGaussianDpEvent:
        """One step with tau/eta = ``width`` in units of the averaged gradient."""
        return MixedGaussianDpEvent(
            self.sampling_probability, self.noise_multiplier, width / self.clip, coordinates
        )


@dataclass(frozen=True)
class MixingChoice:
    """One cell of the plan.

    ``epsilon`` is certified. ``epsilon_as_gaussian`` is the certified epsilon of DP-SGD without
    mixing whose Gaussian noise has the standard deviation ``total_sd``: if it is the smaller one,
    mixing has to earn the difference by what it does to the optimisation.
    """

    tau_over_eta: float
    coordinates: float
    epsilon: float
    gaussian_sd: float
    mixing_sd: float
    epsilon_as_gaussian: float

    @property
    def total_sd(self) -> float:
        return math.hypot(self.gaussian_sd, self.mixing_sd)


@dataclass(frozen=True)
class MixingPlan:
    """Epsilon without mixing, and the choices, by rising tau/eta and then rising p."""

    run: PlannedRun
    plain_epsilon: float
    choices: tuple[MixingChoice, ...]


def modelmix_tradeoff(
    run: PlannedRun,
    tau_over_eta: Iterable[float] | None = None,
    coordinates: Iterable[float] = DEFAULT_COORDINATES,
) -> MixingPlan:
    """Epsilon and noise over a grid of mixing widths and coordinate bounds.

    ``tau_over_eta`` is in units of the averaged gradient, as in the paper; by default a range
    around the clipping bound. ``coordinates`` are values of p: a record's gradient is also clipped
    to ``max_grad_norm/sqrt(p)`` in every coordinate (rule ``LInf``); 1 asks for no such clipping.

    >>> run = PlannedRun(0.02, 0.3633, steps=5000, delta=1e-5, max_grad_norm=20, batch_size=1000)
    >>> (choice,) = modelmix_tradeoff(run, [0.3], [25]).choices
    >>> print(f"{choice.epsilon:.1f}, noise {choice.gaussian_sd:.4f} + {choice.mixing_sd:.4f}")
    5.0, noise 0.0073 + 0.0866
    """
    widths = [w * run.clip for w in DEFAULT_WIDTHS] if tau_over_eta is None else list(tau_over_eta)
    plain = run.epsilon(run.plain_step(run.noise_multiplier))
    ps = sorted(coordinates)
    choices = []
    for width in sorted(widths):
        mixing_sd = width / math.sqrt(12)
        total = math.hypot(run.gaussian_sd, mixing_sd) / run.clip
        as_gaussian = plain if width == 0 else run.epsilon(run.plain_step(total))
        for p in ps:
            epsilon = min(plain, run.epsilon(run.mixed_step(width, p)))
            choices.append(MixingChoice(width, p, epsilon, run.gaussian_sd, mixing_sd, as_gaussian))
    return MixingPlan(run, plain, tuple(choices))
