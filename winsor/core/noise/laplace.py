"""The Laplace mechanism on several parts at once, for bounds in L1.

Part j is a vector that one record moves by at most S_j in L1; it is released with Laplace noise of
scale b_j on every coordinate. Together the parts are one Laplace release of multiplier nm with

    1/nm = sum_j S_j / b_j,        b_j = nm S_j / share_j,   sum_j share_j = 1,

because scaling part j by 1/b_j gives one vector with unit noise that moves by at most 1/nm in L1.

Guarantee
---------
Given the batch, under add/remove: LaplaceDpEvent(nm), the law of *one* coordinate that takes the
whole shift. It dominates every way of spreading the shift over coordinates
(`winsor/core/events/mixed.py` has the proof), also after Poisson sampling. If no
coordinate of one record moves by more than 1/p of the whole, in units of its noise, the event is
`MixedLaplaceDpEvent` without mixing, which is never larger. Parts bounded in L2 only are refused:
the L1 norm of such a vector grows with its length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dp_accounting import dp_event

from winsor.core.contract import Bounded, Neighbouring, UnsoundRelease, UnsupportedRelation
from winsor.core.events.joint import check_shares
from winsor.core.events.mixed import MixedLaplaceDpEvent
from winsor.core.noise import source as noise
from winsor.core.noise.gaussian import FixedNoise
from winsor.core.noise.protocol import LocalEvent


@dataclass(frozen=True)
class LaplaceEvent:
    """Noise multipliers of a joint release given its batch, and over how many coordinates (p) the
    shift of one record is spread at least."""

    add_remove: float
    replace: float
    coordinates: float = 1.0

    def poisson(self, q: float, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event if each row takes part with probability ``q``."""
        if q == 1.0:
            return self.whole(relation)
        if self.coordinates == 1.0 and relation is Neighbouring.ADD_OR_REMOVE_ONE:
            return dp_event.PoissonSampledDpEvent(q, dp_event.LaplaceDpEvent(self.add_remove))
        return MixedLaplaceDpEvent(q, self.add_remove, 0.0, self.coordinates)

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event on a random subset of ``size`` of the n rows."""
        raise UnsupportedRelation(
            "Laplace noise must be sampled by Poisson, or used on the full batch: there is no "
            "certified account of it on batches of fixed size. Got fixed-size batches instead. "
            'Use sampling="poisson".'
        )

    def whole(self, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event if all rows take part."""
        if relation is Neighbouring.REPLACE_ONE:
            return dp_event.LaplaceDpEvent(self.replace)
        if self.coordinates == 1.0:
            return dp_event.LaplaceDpEvent(self.add_remove)
        return MixedLaplaceDpEvent(1.0, self.add_remove, 0.0, self.coordinates)


class Laplace(FixedNoise):
    """Laplace noise of scale ``noise_multiplier`` times the joint add/remove L1 sensitivity."""

    law: ClassVar[str] = "laplace"

    def std(self, parts: Mapping[str, Bounded]) -> dict[str, float]:
        """Standard deviations: sqrt(2) times the scales."""
        check_shares(parts)
        return {
            name: math.sqrt(2) * self.noise_multiplier * l1_bound(name, part) / part.share
            for name, part in parts.items()
        }

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> LocalEvent:
        """The event of any step: this mechanism does the same at each."""
        return joint_event(parts, self.noise_multiplier)

    add_noise = staticmethod(noise.add_laplace)


def joint_event(parts: Mapping[str, Bounded], noise_multiplier: float) -> LaplaceEvent:
    """The event of releasing all parts with the noise of `Laplace.std`.

    In units of its noise, part j moves by share_j / nm in L1 and each of its coordinates by at most
    (coordinate bound / S_j) share_j / nm.
    """
    check_shares(parts)
    largest = max(part.share * _largest_coordinate(name, part) for name, part in parts.items())
    return LaplaceEvent(noise_multiplier, noise_multiplier / 2, max(1.0, 1 / largest))


def l1_bound(name: str, part: Bounded) -> float:
    """S_j: how far one record can move the part in L1."""
    bound = part.sensitivity.l1
    if bound is None:
        raise UnsoundRelease(
            f"a part released with Laplace noise must be bounded in L1. Got {name!r}, bounded in "
            "L2 only, instead. Use the rule winsor.rules.L1, or Gaussian noise."
        )
    return bound


def _largest_coordinate(name: str, part: Bounded) -> float:
    """The largest coordinate of one record's contribution over its L1 bound."""
    bound = l1_bound(name, part)
    return 1.0 if part.coordinate_bound is None else min(1.0, part.coordinate_bound / bound)
