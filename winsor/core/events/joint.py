"""What Gaussian noise costs given the batch: on several bounded parts, or correlated over steps.

The parts of a release are one Gaussian whose noise multiplier nm satisfies
nm^-2 = sum_j (S_j / s_j)^2 (see `gaussian.py`, which adds the noise).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from dp_accounting import dp_event

from winsor.core.contract import Bounded, Neighbouring, UnsoundRelease, UnsupportedEvent
from winsor.core.noise.protocol import LocalEvent


@dataclass(frozen=True)
class GaussianEvent:
    """Noise multipliers of a joint release given its batch, under each relation."""

    add_remove: float
    replace: float
    mixture: tuple[tuple[float, float], ...] | None = None

    def poisson(self, q: float, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event if each row takes part with probability ``q``."""
        if q == 1.0:
            return self.whole(relation)
        if self.mixture is None or relation is Neighbouring.REPLACE_ONE:
            return dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(self.add_remove))
        absent_or_shifted = ((1 - q, 0.0), *((q * p, shift) for p, shift in self.mixture))
        return _mixture_event(self.add_remove, absent_or_shifted)

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event on a random subset of ``size`` of the n rows."""
        gaussian = dp_event.GaussianDpEvent(self.replace)
        return dp_event.SampledWithoutReplacementDpEvent(n, size, gaussian)

    def whole(self, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event if all rows take part."""
        if relation is Neighbouring.REPLACE_ONE:
            return dp_event.GaussianDpEvent(self.replace)
        if self.mixture is None:
            return dp_event.GaussianDpEvent(self.add_remove)
        return _mixture_event(self.add_remove, self.mixture)


def _mixture_event(multiplier: float, mixture: tuple[tuple[float, float], ...]) -> dp_event.DpEvent:
    """A shift of random size along one direction, independent of the other records (fact F3)."""
    largest = max(shift for _, shift in mixture)
    shifts = tuple(shift / largest for _, shift in mixture)
    return dp_event.MixtureOfGaussiansDpEvent(multiplier, shifts, tuple(p for p, _ in mixture))


def joint_event(parts: Mapping[str, Bounded], noise_multiplier: float) -> GaussianEvent:
    """The event of releasing all parts with the noise of `Gaussian.std`.

    With s_j = nm S_j / sqrt(share_j), sum_j (S_j/s_j)^2 = nm^-2 and, for the replace sensitivities
    R_j, sum_j (R_j/s_j)^2 = nm^-2 sum_j share_j (R_j/S_j)^2. Written in shares, the event does not
    vary in its last digits with an adaptive threshold, so all steps are one kind of event.
    """
    ratio = sum(
        part.share * (part.sensitivity.replace / part.sensitivity.add_remove) ** 2
        for part in parts.values()
    )
    mixture = next(iter(parts.values())).sensitivity.mixture if len(parts) == 1 else None
    return GaussianEvent(noise_multiplier, noise_multiplier / math.sqrt(ratio), mixture)


def check_shares(parts: Mapping[str, Bounded]) -> None:
    """The parts of one release divide one privacy budget."""
    total = sum(part.share for part in parts.values())
    if not math.isclose(total, 1.0, rel_tol=1e-9):
        raise UnsoundRelease(f"shares of a joint release must add up to 1. Got {total} instead.")


@dataclass(frozen=True)
class BandedEvent:
    """A release whose noise takes part in the ``bands - 1`` releases after it.

    `LocalEvent`, but one that every way of drawing refuses unless a row, once drawn, stays away for
    ``bands`` steps; such a sampler asks `separated`.
    """

    bands: int
    noise: LocalEvent

    def separated(self, steps: int, rate: float, relation: Neighbouring) -> dp_event.DpEvent:
        """``steps`` releases in a row; a record is in one of them with probability ``rate``."""
        if steps < self.bands:
            raise self._refusal(f"rows may return after {steps} steps")
        return self.noise.poisson(rate, relation)

    def poisson(self, q: float, relation: Neighbouring) -> NoReturn:
        """Refuse: a row may return before the bands have passed."""
        raise self._refusal("rows may return at any step")

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> NoReturn:
        """Refuse: a row may return before the bands have passed."""
        raise self._refusal("rows may return at any step")

    def whole(self, relation: Neighbouring) -> NoReturn:
        """Refuse: a row may return before the bands have passed."""
        raise self._refusal("rows may return at any step")

    def _refusal(self, why: str) -> UnsupportedEvent:
        return UnsupportedEvent(
            f"noise with {self.bands} bands must be drawn for rows that stay away for "
            f"{self.bands} steps after each visit. Got a sampler where {why} instead. Use "
            f"CyclicPoisson(n, bands={self.bands}, q=...), or Gaussian noise."
        )
