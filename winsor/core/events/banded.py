"""What correlated noise costs: it can be said under cyclic sampling only. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from dp_accounting import dp_event

from winsor.core.contract import Neighbouring, UnsupportedEvent
from winsor.core.noise.protocol import LocalEvent


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
