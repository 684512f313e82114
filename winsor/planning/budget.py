"""From a target to noise: the smallest Gaussian that keeps a whole plan within (epsilon, delta).

A plan is the list of events that a run will record, as a function of one noise multiplier. The
multiplier is found by the certified accountant itself, so what is calibrated and what is reported
cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dp_accounting import dp_event

from winsor.core.checks import as_delta, as_relation, positive, probability
from winsor.core.contract import Bounded, ConfigurationError, Neighbouring, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import Sampler
from winsor.planning import calibrate


@dataclass(frozen=True)
class Target:
    """What may be spent: (epsilon, delta), or rho of zCDP with the delta to report it at."""

    epsilon: float | None
    delta: float
    rho: float | None
    relation: Neighbouring

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.rho is None):
            raise ConfigurationError(
                f"give either epsilon or rho. Got epsilon={self.epsilon!r}, rho={self.rho!r} "
                "instead."
            )
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
        else:
            assert self.rho is not None
            positive("rho", self.rho)
        probability("delta", self.delta)

    @staticmethod
    def of(
        n: int,
        epsilon: float | None,
        delta: float | None,
        relation: str | Neighbouring,
        allow_large_delta: bool,
        rho: float | None = None,
    ) -> Target:
        """Check what a user may spend on ``n`` rows; the default of ``delta`` depends on n."""
        certified = as_delta(delta, n, allow_large_delta)
        return Target(epsilon, certified, rho, as_relation(relation))


@dataclass(frozen=True)
class Payment:
    """One line of a plan: ``steps`` releases at this sensitivity, with ``scale`` times the noise
    multiplier that is being looked for."""

    sampler: Sampler
    sensitivity: Sensitivity
    steps: int
    scale: float = 1.0

    def event(self, multiplier: float, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the privacy event of one of the releases."""
        local = Gaussian(multiplier * self.scale).event({"value": Bounded(None, self.sensitivity)})
        return self.sampler.amplify(local, relation)


def noise_multiplier(plan: Sequence[Payment], target: Target) -> float:
    """The multiplier at which ``plan`` spends ``target``, certified."""
    return _calibrated(tuple(plan), target)


@lru_cache(maxsize=256)  # repeated fits (cross-validation, benchmarks) ask the same question
def _calibrated(plan: tuple[Payment, ...], target: Target) -> float:
    if target.rho is not None:
        return _zcdp(plan, target)
    assert target.epsilon is not None
    return calibrate.noise_multiplier(
        lambda nm: [(line.event(nm, target.relation), line.steps) for line in plan],
        calibrate.Budget(target.epsilon, target.delta, target.relation),
    )


def _zcdp(plan: Sequence[Payment], target: Target) -> float:
    """Gaussian releases are zCDP with rho = steps / (2 nm^2), nm relative to the relation's shift
    (Bun & Steinke 2016, Prop. 6); zCDP says nothing useful about sampled ones."""
    assert target.rho is not None
    total = 0.0
    for line in plan:
        event = line.event(1.0, target.relation)
        if not isinstance(event, dp_event.GaussianDpEvent):
            raise ConfigurationError(
                "rho must be used with unsampled groups only: zCDP does not describe amplification "
                "by sampling. Got a sampled plan instead. Give epsilon and delta."
            )
        total += line.steps / (2 * event.noise_multiplier**2)
    return math.sqrt(total / target.rho)
