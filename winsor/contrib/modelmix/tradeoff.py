"""Choosing ModelMix's threshold: what epsilon it buys, and what noise it costs.

For every tau/lr and p of a grid: the certified epsilon of the run, and next to the standard
deviation of the Gaussian noise the one that mixing adds to each coordinate, w/sqrt(12), both in the
units of the averaged gradient. A third number keeps the comparison honest: the epsilon of plain
DP-SGD if that extra variance were Gaussian noise instead.

No data are read; this is arithmetic on a planned run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent

from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.core.accounting.spending import certify
from winsor.core.checks import all_positive
from winsor.core.contract import Neighbouring
from winsor.core.events.joint import joint_event
from winsor.planning.plan import PARTS

DEFAULT_P = (1.0, 25.0, 100.0)
DEFAULT_WIDTHS = (0.5, 2.0, 5.0, 10.0)
"""tau/lr over the standard deviation of the Gaussian noise."""


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
        all_positive(max_grad_norm=self.max_grad_norm, batch_size=self.batch_size)

    @property
    def clip(self) -> float:
        """Most that one record moves the averaged gradient."""
        return self.max_grad_norm / self.batch_size

    @property
    def gaussian_sd(self) -> float:
        """Standard deviation of the Gaussian noise on a coordinate of the averaged gradient."""
        return self.noise_multiplier * self.clip

    @functools.cached_property
    def plain_epsilon(self) -> float:
        """Certified epsilon without mixing."""
        return self.epsilon(self.plain_step(self.noise_multiplier))

    def epsilon(self, event: DpEvent) -> float:
        """Certified epsilon of the run when every step is ``event``."""
        return certify([(event, self.steps)], self.delta).epsilon

    def plain_step(self, noise_multiplier: float) -> DpEvent:
        local = joint_event(PARTS, noise_multiplier)
        return local.poisson(self.sampling_probability, Neighbouring.ADD_OR_REMOVE_ONE)

    def mixed_step(self, width: float, p: float) -> MixedGaussianDpEvent:
        """One step with tau/lr = ``width`` in units of the averaged gradient."""
        return MixedGaussianDpEvent(
            self.sampling_probability, self.noise_multiplier, width / self.clip, p
        )


@dataclass(frozen=True)
class MixingRow:
    """One cell of the grid: deviations are of a coordinate of the averaged gradient.

    ``epsilon`` is certified. ``epsilon_as_gaussian`` is the certified epsilon of DP-SGD without
    mixing whose Gaussian noise has the standard deviation ``total_sd``: if it is the smaller one,
    mixing has to earn the difference by what it does to the optimisation.
    """

    tau_over_lr: float
    p: float
    epsilon: float
    noise_multiplier: float
    gaussian_sd: float
    mixing_sd: float
    total_sd: float
    epsilon_as_gaussian: float


def modelmix_tradeoff(
    run: PlannedRun, tau_over_lr: Iterable[float] = (), p: Iterable[float] = DEFAULT_P
) -> tuple[MixingRow, ...]:
    """Epsilon and noise over a grid of mixing widths and coordinate bounds, in rising order.

    ``tau_over_lr`` is in units of the averaged gradient, as in the paper; by default a range
    around the Gaussian noise. ``p``: a record's gradient is also clipped to
    ``max_grad_norm/sqrt(p)`` in every coordinate (rule ``LInf``); 1 asks for no such clipping.

    >>> run = PlannedRun(0.02, 0.3633, steps=5000, delta=1e-5, max_grad_norm=20, batch_size=1000)
    >>> (row,) = modelmix_tradeoff(run, [0.3], [25])
    >>> print(f"{row.epsilon:.1f}, noise {row.gaussian_sd:.4f} + {row.mixing_sd:.4f}")
    5.0, noise 0.0073 + 0.0866
    """
    widths = sorted(tau_over_lr) or [w * run.gaussian_sd for w in DEFAULT_WIDTHS]
    ps, rows = sorted(p), []
    for width in widths:
        mixing_sd = width / math.sqrt(12)
        total_sd = math.hypot(run.gaussian_sd, mixing_sd)
        as_gaussian = run.plain_epsilon
        if width:
            as_gaussian = run.epsilon(run.plain_step(total_sd / run.clip))
        for bound in ps:
            rows.append(
                MixingRow(
                    tau_over_lr=width,
                    p=bound,
                    epsilon=min(run.plain_epsilon, run.epsilon(run.mixed_step(width, bound))),
                    noise_multiplier=run.noise_multiplier,
                    gaussian_sd=run.gaussian_sd,
                    mixing_sd=mixing_sd,
                    total_sd=total_sd,
                    epsilon_as_gaussian=as_gaussian,
                )
            )
    return tuple(rows)
