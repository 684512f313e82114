"""Gaussian noise on counts of which only those above a threshold leave.

    T = 1 + s z,   z such that k normal variables all stay below it with probability 1 - delta

A record that alone holds its categories in k columns is seen in any of them with probability at
most delta. The event in the ledger says both, the noise and this chance
(`winsor/core/events/thresholded.py`).

Guarantee
---------
z is taken for 0.99 delta: noise on a grid has the tails of a Gaussian up to far less than that
(`lattice.py`), and T is rounded up by more than a step of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent
from scipy.stats import norm

from winsor.core.checks import probability
from winsor.core.contract import Bounded, Neighbouring, UnsoundRelease
from winsor.core.events.joint import joint_event
from winsor.core.events.thresholded import ThresholdedGaussianDpEvent
from winsor.core.noise.gaussian import Gaussian

_CAREFUL = 0.99
_ROUNDED = 1e-6


@dataclass(frozen=True)
class _WholeTable:
    """The event of all rows; a sample of them has no account."""

    add_remove: float
    replace: float
    delta: float

    def whole(self, relation: Neighbouring) -> DpEvent:
        exchanged = relation is Neighbouring.REPLACE_ONE
        multiplier = self.replace if exchanged else self.add_remove
        return ThresholdedGaussianDpEvent(multiplier, self.delta)

    def poisson(self, q: float, relation: Neighbouring) -> DpEvent:
        raise _sampled()

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> DpEvent:
        raise _sampled()


def _sampled() -> UnsoundRelease:
    return UnsoundRelease(
        "counts above a threshold must be of all rows. Got a sample instead, for which no account "
        "is proven. Use FullBatch."
    )


class ThresholdedGaussian(Gaussian):
    """Gaussian noise, and a chance of at most ``delta`` that a lonely category is seen."""

    delta: float

    def __init__(self, noise_multiplier: float, delta: float) -> None:
        super().__init__(noise_multiplier)
        object.__setattr__(self, "delta", probability("delta", delta))

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> _WholeTable:
        """Return the event of all rows, the chance of a disclosure included."""
        both = joint_event(parts, self.noise_multiplier)
        return _WholeTable(both.add_remove, both.replace, self.delta)

    def threshold(self, std: float, columns: int) -> float:
        """What a noisy count must exceed, for noise of ``std`` in each of ``columns`` columns.

        >>> round(ThresholdedGaussian(4.0, 1e-5).threshold(4.0, 1), 1)
        18.1
        """
        each = -math.expm1(math.log1p(-_CAREFUL * self.delta) / columns)
        return 1.0 + std * (float(norm.isf(each)) + _ROUNDED)
