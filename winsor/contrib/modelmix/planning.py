"""Planning a run with ModelMix: both sides of the trade that mixing offers.

With a noise multiplier the Gaussian noise is given and each cell of the table says what epsilon a
threshold tau and a coordinate bound p buy. With an epsilon the target is given and each cell says
how much Gaussian noise is still needed. Either way the noise that mixing adds to a coordinate
stands next to the Gaussian noise, in the units of the averaged gradient, and next to both what the
same total variance would give as plain Gaussian noise. The plain run is that of `winsor.planning`.

Guarantee
---------
Every epsilon is the certified one of the planned run under add/remove-one with Poisson sampling.

>>> question = MixingQuestion(n=50_000, batch_size=1000, steps=5000, delta=1e-5, max_grad_norm=20,
...     noise_multiplier=0.3633, tau_over_lr=(0.3,), p=(25,))
>>> (row,) = solve(question).rows
>>> print(f"{row.epsilon:.1f}; as plain Gaussian noise {row.epsilon_as_gaussian:.2f}")
5.0; as plain Gaussian noise 1.26
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from winsor.contrib.modelmix.tradeoff import (
    DEFAULT_P,
    DEFAULT_WIDTHS,
    MixingRow,
    PlannedRun,
    modelmix_tradeoff,
)
from winsor.core.checks import at_least, positive
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.planning import calibrate
from winsor.planning import plan as planning


@dataclass(frozen=True)
class MixingQuestion:
    """A planned run; one of ``noise_multiplier`` and ``epsilon``, one of ``steps`` and ``epochs``.

    ``tau_over_lr`` is in units of the averaged gradient; the default is a range around the noise
    of the plain run. ``p`` are coordinate bounds: 1 for none, else those of ``rules.LInf``.
    """

    n: int
    batch_size: float
    delta: float
    steps: int | None = None
    epochs: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    max_grad_norm: float = 1.0
    tau_over_lr: tuple[float, ...] = ()
    p: tuple[float, ...] = DEFAULT_P
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        for first, second in (("noise_multiplier", "epsilon"), ("steps", "epochs")):
            if (getattr(self, first) is None) == (getattr(self, second) is None):
                raise ConfigurationError(
                    f"one of {first} and {second} must be given. Got "
                    f"{getattr(self, first)!r} and {getattr(self, second)!r} instead."
                )
        self.without_mixing()  # checks the numbers that every plan has
        positive("max_grad_norm", self.max_grad_norm)
        for width in self.tau_over_lr:
            at_least("tau_over_lr", width, 0)
        for p in self.p:
            at_least("p", p, 1, "1 asks for no coordinate bound.")

    def without_mixing(self) -> planning.Question:
        """The same run as plain DP-SGD."""
        names = {field.name for field in dataclasses.fields(planning.Question)}
        return planning.Question(**{k: v for k, v in vars(self).items() if k in names})


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
        return {
            "mechanism": "modelmix",
            "relation": Neighbouring.ADD_OR_REMOVE_ONE.value,
            **dataclasses.asdict(self),
        }


def solve(question: MixingQuestion) -> MixingAnswer:
    """The table of ``question``."""
    plain = planning.solve(question.without_mixing(), points=0)
    run = PlannedRun(
        plain.sampling_rate,
        plain.noise_multiplier,
        plain.steps,
        plain.delta,
        question.max_grad_norm,
        question.batch_size,
    )
    if question.epsilon is None:
        rows = modelmix_tradeoff(run, question.tau_over_lr, question.p)
    else:
        widths = question.tau_over_lr or tuple(w * run.gaussian_sd for w in DEFAULT_WIDTHS)
        rows = tuple(
            _at_epsilon(run, question.epsilon, width, p)
            for width in sorted(widths)
            for p in sorted(question.p)
        )
    return MixingAnswer(
        plain_epsilon=plain.epsilon,
        plain_noise_multiplier=plain.noise_multiplier,
        plain_sd=run.gaussian_sd,
        sampling_rate=run.sampling_probability,
        steps=run.steps,
        delta=run.delta,
        solved_for=plain.solved_for,
        rows=rows,
    )


def _at_epsilon(run: PlannedRun, epsilon: float, width: float, p: float) -> MixingRow:
    """The least Gaussian noise that certifies the target next to mixing of ``width``."""

    def event_of(noise: float) -> DpEvent:
        quieter = dataclasses.replace(run, noise_multiplier=noise)
        return quieter.mixed_step(width, p) if width else run.plain_step(noise)

    noise = calibrate.noise_multiplier(event_of, run.steps, epsilon, run.delta)
    (row,) = modelmix_tradeoff(dataclasses.replace(run, noise_multiplier=noise), (width,), (p,))
    return row
