"""Noise that a paper's own account asks for: T steps of a Poisson-sampled Gaussian."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from winsor.core.accounting import History
from winsor.planning import calibrate


def sampled_event(rate: float, multiplier: float) -> DpEvent:
    """SG(q, s) of the papers."""
    return PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier))


@cache
def sampled_noise(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """The noise multiplier at which ``steps`` subsampled Gaussians spend ``epsilon``."""
    return calibrate.noise_multiplier(
        lambda multiplier: [(sampled_event(rate, multiplier), steps)],
        calibrate.Budget(epsilon, delta),
    )


@dataclass(frozen=True)
class SampledRun:
    """A run whose noise was chosen so that the paper would call it (epsilon, delta)-private."""

    published_epsilon: float
    delta: float
    sampling_probability: float
    steps: int

    @property
    def published_multiplier(self) -> float:
        """s: the noise, over the paper's sensitivity, that gives the claimed epsilon."""
        return sampled_noise(
            self.sampling_probability, self.steps, self.published_epsilon, self.delta
        )

    @property
    def noise_multiplier(self) -> float:
        """The same noise over the certified sensitivity: what the certified rule trains with."""
        return self.published_multiplier

    def certified_history(self) -> History:
        """What the certified rule costs with this noise, for `winsor.core.accounting.spending`."""
        return [(sampled_event(self.sampling_probability, self.noise_multiplier), self.steps)]
