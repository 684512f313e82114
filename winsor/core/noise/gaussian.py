"""The Gaussian mechanism on several parts at once.

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
from typing import Any, ClassVar

from winsor.core.checks import positive
from winsor.core.contract import Bounded, UnsoundRelease
from winsor.core.events.joint import check_shares, joint_event
from winsor.core.noise import source as noise
from winsor.core.noise.protocol import LocalEvent


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
