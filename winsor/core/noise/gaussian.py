"""The Gaussian mechanism on several parts at once, and on counts that leave above a threshold.

Part j is a vector that one record moves by at most S_j; it is released with noise N(0, s_j^2).
Together the parts are one Gaussian release whose noise multiplier nm satisfies

    nm^-2 = sum_j (S_j / s_j)^2,        s_j = nm S_j / sqrt(share_j),   sum_j share_j = 1,

because scaling part j by 1/s_j gives one vector with unit noise that moves by at most 1/nm.

Guarantee
---------
Given the batch: GaussianDpEvent(nm) under add/remove. Sampling amplifies it (see `sampling`).
Under Poisson and replace-one, two opposite shifts of the add/remove size are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent
from scipy.stats import norm

from winsor.core.checks import positive, probability
from winsor.core.contract import Bounded, Neighbouring, UnsoundRelease
from winsor.core.events.joint import check_shares, joint_event
from winsor.core.events.thresholded import ThresholdedGaussianDpEvent
from winsor.core.noise import source as noise
from winsor.core.noise.protocol import LocalEvent

_CAREFUL = 0.99
_ROUNDED = 1e-6


class FixedNoise:
    """A noise multiplier that cannot be changed once the ledger relies on it."""

    noise_multiplier: float
    law: ClassVar[str] = "gaussian"
    phases: ClassVar[tuple[int, ...]] = (0,)
    """The first steps of stretches in which every step costs the same."""
    roundings = 1
    """How many releases round what one visit of a record moves."""

    def __init__(self, noise_multiplier: float) -> None:
        object.__setattr__(self, "noise_multiplier", positive("noise_multiplier", noise_multiplier))

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnsoundRelease(
            f"{name} of a mechanism cannot be changed by hand: the ledger accounts for the noise "
            "the mechanism was built with. Build a new run with the noise you want."
        )

    def config(self) -> dict[str, Any]:
        """What the ledger's header says of this mechanism."""
        return {"mechanism": type(self).__name__, "noise_multiplier": self.noise_multiplier}


class Gaussian(FixedNoise):
    """Gaussian noise of ``noise_multiplier`` times the joint add/remove sensitivity."""

    def std(self, parts: Mapping[str, Bounded]) -> dict[str, float]:
        """Return the standard deviation of the noise of each part."""
        check_shares(parts)
        return {
            name: self.noise_multiplier * part.sensitivity.add_remove / math.sqrt(part.share)
            for name, part in parts.items()
        }

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> LocalEvent:
        """The event of any step: this mechanism does the same at each."""
        check_shares(parts)
        return joint_event(parts, self.noise_multiplier)

    add_noise = staticmethod(noise.add_gaussian)


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
