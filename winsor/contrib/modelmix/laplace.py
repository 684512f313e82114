"""ModelMix over L1-clipped gradients with Laplace noise: the second half of Theorem 4.2.

    w_k(j) = (w_{k-1}(j) + w_{k-2}(j))/2 + U(-1/2, 1/2) width_j  -  eta_k (G_j + Laplace(b)) / B

Width and update are those of `mechanism.py` in this folder; only clipping and noise differ.

Guarantee
---------
`MixedLaplaceDpEvent`, under the conditions listed in `winsor/contrib/modelmix/mechanism.py`; see
`winsor/core/events/mixed_laplace.py` for the proof. The paper's eq. 15 is an order of growth; the
event is a bound for the run at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import dp_event

from winsor.contrib.modelmix.mechanism import ModelMix, only_part
from winsor.core.contract import Bounded, Neighbouring
from winsor.core.events.mixed_laplace import MixedLaplaceDpEvent
from winsor.core.noise.laplace import Laplace, LaplaceEvent, joint_event, l1_bound


@dataclass(frozen=True)
class MixedLaplaceEvent:
    """The release of one mixed step, given its batch."""

    plain: LaplaceEvent
    width_ratio: float

    def poisson(self, q: float, relation: Neighbouring) -> dp_event.DpEvent:
        if self.width_ratio == 0:
            return self.plain.poisson(q, relation)
        plain = self.plain
        return MixedLaplaceDpEvent(q, plain.add_remove, self.width_ratio, plain.coordinates)

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> dp_event.DpEvent:
        return self.plain.fixed_size(n, size, relation)

    def whole(self, relation: Neighbouring) -> dp_event.DpEvent:
        if self.width_ratio == 0:
            return self.plain.whole(relation)
        plain = self.plain
        return MixedLaplaceDpEvent(1.0, plain.add_remove, self.width_ratio, plain.coordinates)


class MixedLaplace(Laplace):
    """Laplace noise on the sum; the update (`update.py`) adds the mixing before release."""

    mix: ModelMix
    expected_size: float

    def __init__(self, noise_multiplier: float, mix: ModelMix, expected_size: float) -> None:
        super().__init__(noise_multiplier)
        object.__setattr__(self, "mix", mix)
        object.__setattr__(self, "expected_size", expected_size)

    @property
    def phases(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(first for first, _ in self.mix.schedule)

    def config(self) -> dict[str, Any]:
        return {**super().config(), "mechanism": "ModelMix", "mix": repr(self.mix)}

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> MixedLaplaceEvent:
        bound = l1_bound("grad", only_part(parts))
        width = self.mix.at(step) * self.expected_size  # the update divides the sum by this size
        plain = joint_event(parts, self.noise_multiplier)
        return MixedLaplaceEvent(plain, width / bound)
