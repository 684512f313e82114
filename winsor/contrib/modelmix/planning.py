"""Planning a run with ModelMix: what epsilon a threshold buys, and what noise it costs.

With a noise multiplier the Gaussian noise is given and each cell of the table says what epsilon a
threshold tau and a coordinate bound p buy. With an epsilon the target is given and each cell says
how much Gaussian noise is still needed. Either way the noise that mixing adds to a coordinate,
w/sqrt(12), stands next to the Gaussian noise, in the units of the averaged gradient, and next to
both the epsilon of plain DP-SGD if the same total variance were Gaussian noise. The plain run is
that of `winsor.planning`. No data are read.

Guarantee
---------
Every epsilon is the certified one of the planned run under add/remove-one with Poisson sampling.

>>> question = Question(n=50_000, batch_size=1000, steps=5000, delta=1e-5, noise_multiplier=0.3633)
>>> (row,) = solve(question, max_grad_norm=20, tau_over_lr=[0.3], p=[25]).rows
>>> print(f"{row.epsilon:.1f}; as plain Gaussian noise {row.epsilon_as_gaussian:.2f}")
5.0; as plain Gaussian noise 1.26
>>> print(f"noise {row.gaussian_sd:.4f} + {row.mixing_sd:.4f}")
noise 0.0073 + 0.0866
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.core.accounting.spending import certify
from winsor.core.checks import all_positive, at_least, positive
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.registry import History
from winsor.planning import calibrate
from winsor.planning import plan as planning
from winsor.planning.plan import Question
from winsor.planning.run import PlannedRun

DEFAULT_P = (1.0, 25.0, 100.0)
DEFAULT_WIDTHS = (0.5, 2.0, 5.0, 10.0)
"""tau/lr over the standard deviation of the Gaussian noise."""


@dataclass(frozen=True)
class MixedRun:
    """A run of DP-SGD to which mixing may be added.

    Gradients are averaged: ``max_grad_norm`` bounds one record's gradient, and the sum is divided
    by the expected ``batch_size``. Leave ``batch_size`` at 1 to think in sums.
    """

    plain: PlannedRun
    noise_multiplier: float
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
        return self.plain.spent(self.noise_multiplier).epsilon

    def mixed_step(self, width: float, p: float) -> DpEvent:
        """Return the event of a step with tau/lr = ``width`` in units of the averaged gradient."""
        return MixedGaussianDpEvent(
            self.plain.sampler.rate, self.noise_multiplier, width / self.clip, p
        )

    def mixed_epsilon(self, width: float, p: float) -> float:
        """Return the certified epsilon of the run with mixing, or without it if that is less."""
        mixed = certify([(self.mixed_step(width, p), self.plain.steps)], self.plain.delta).epsilon
        return min(self.plain_epsilon, mixed)


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


@dataclass(frozen=True)
class MixingAnswer:
    """The plain run, and the cells by rising tau and then rising p."""

    plain_epsilon: float
    plain_noise_multiplier: float
    plain_sd: float
    sampling_rate: float
    steps: int
    delta: float
    solved_for: str
    rows: tuple[MixingRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain values."""
        return {
            "mechanism": "modelmix",
            "relation": Neighbouring.ADD_OR_REMOVE_ONE.value,
            **dataclasses.asdict(self),
        }


def solve(
    question: Question,
    *,
    max_grad_norm: float = 1.0,
    tau_over_lr: Iterable[float] = (),
    p: Iterable[float] = DEFAULT_P,
) -> MixingAnswer:
    """Compute the table of a planned run of which the noise or epsilon is missing.

    ``tau_over_lr`` is in units of the averaged gradient; the default is a range around the noise
    of the plain run. ``p`` are coordinate bounds: 1 for none, else a record's gradient is also
    clipped to ``max_grad_norm/sqrt(p)`` in every coordinate (rule ``LInf``).
    """
    positive("max_grad_norm", max_grad_norm)
    widths = sorted(at_least("tau_over_lr", width, 0) for width in tau_over_lr)
    bounds = sorted(at_least("p", bound, 1, "1 asks for no coordinate bound.") for bound in p)
    _check(question)
    found = planning.solve(question, points=0)
    plain = dataclasses.replace(question, delta=found.delta).run()
    assert question.batch_size is not None
    run = MixedRun(plain, found.noise_multiplier, max_grad_norm, question.batch_size)
    if question.epsilon is None:
        rows = modelmix_tradeoff(run, widths, bounds)
    else:
        widths = widths or [width * run.gaussian_sd for width in DEFAULT_WIDTHS]
        rows = tuple(_at_epsilon(run, question.epsilon, w, b) for w in widths for b in bounds)
    return MixingAnswer(
        plain_epsilon=found.epsilon,
        plain_noise_multiplier=found.noise_multiplier,
        plain_sd=run.gaussian_sd,
        sampling_rate=plain.sampler.rate,
        steps=plain.steps,
        delta=plain.delta,
        solved_for=found.solved_for,
        rows=rows,
    )


def modelmix_tradeoff(
    run: MixedRun, tau_over_lr: Iterable[float] = (), p: Iterable[float] = DEFAULT_P
) -> tuple[MixingRow, ...]:
    """Compute epsilon and noise over a grid of mixing widths and bounds, in rising order."""
    widths = sorted(tau_over_lr) or [w * run.gaussian_sd for w in DEFAULT_WIDTHS]
    ps, rows = sorted(p), []
    for width in widths:
        mixing_sd = width / math.sqrt(12)
        total_sd = math.hypot(run.gaussian_sd, mixing_sd)
        as_gaussian = run.plain_epsilon
        if width:
            as_gaussian = run.plain.spent(total_sd / run.clip).epsilon
        for bound in ps:
            rows.append(
                MixingRow(
                    tau_over_lr=width,
                    p=bound,
                    epsilon=run.mixed_epsilon(width, bound),
                    noise_multiplier=run.noise_multiplier,
                    gaussian_sd=run.gaussian_sd,
                    mixing_sd=mixing_sd,
                    total_sd=total_sd,
                    epsilon_as_gaussian=as_gaussian,
                )
            )
    return tuple(rows)


def _check(question: Question) -> None:
    for first, second in (("noise_multiplier", "epsilon"), ("steps", "epochs")):
        if (getattr(question, first) is None) == (getattr(question, second) is None):
            raise ConfigurationError(
                f"one of {first} and {second} must be given. Got "
                f"{getattr(question, first)!r} and {getattr(question, second)!r} instead."
            )
    if question.relation is not Neighbouring.ADD_OR_REMOVE_ONE or question.sampling != "poisson":
        raise ConfigurationError(
            "ModelMix must be planned under add_or_remove_one with Poisson sampling: its account "
            f"is of these. Got {question.relation.value}, {question.sampling} instead."
        )


def _at_epsilon(run: MixedRun, epsilon: float, width: float, p: float) -> MixingRow:
    """The least Gaussian noise that certifies the target next to mixing of ``width``."""

    def history_of(noise: float) -> History:
        if not width:
            return run.plain.history(noise)
        quieter = dataclasses.replace(run, noise_multiplier=noise)
        return [(quieter.mixed_step(width, p), run.plain.steps)]

    noise = calibrate.noise_multiplier(history_of, run.plain.budget(epsilon))
    (row,) = modelmix_tradeoff(dataclasses.replace(run, noise_multiplier=noise), (width,), (p,))
    return row
