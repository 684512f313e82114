"""What the two ModelMix events have in common: four numbers, relative to the clipping bound c.

One event is one step; a run whose noise or mixing width changes over time has several.
"""

from __future__ import annotations

import math
from typing import Any, Self

import attr
from dp_accounting.dp_event import DpEvent

from winsor.core.contract import ConfigurationError

NARROWEST = 0.01
"""Width over noise scale below which mixing is ignored: it adds less than 1e-5 of the variance."""

WIDEST = 4096.0
"""Width over noise scale up to which widths are told apart: beyond, positions lose digits that the
error allowances of `winsor.contrib.modelmix.moments` count on. Rounding a width down is sound."""


@attr.s(frozen=True, auto_attribs=True)
class MixedDpEvent(DpEvent):
    """One Poisson-sampled step whose noise is widened by an independent uniform per coordinate.

    Attributes:
        sampling_probability: Poisson rate q.
        noise_multiplier: noise scale over the bound c on one record's gradient.
        width_ratio: guaranteed width of the uniform over c, both in gradient units: the mixing
            threshold tau divided by the factor that multiplies the clipped *sum* in the update,
            then by c. For an update ``eta/(q n) * sum`` that is ``tau q n / (eta c)``.
        coordinates: p, where no coordinate of one record exceeds ``c/sqrt(p)`` (Gaussian noise, L2
            bound c) or ``c/p`` (Laplace noise, L1 bound c). 1 without a coordinate bound; need not
            be whole.
    """

    sampling_probability: float
    noise_multiplier: float
    width_ratio: float
    coordinates: float = 1.0

    def __attrs_post_init__(self) -> None:
        q = self.sampling_probability
        _require(0 <= q <= 1, "sampling_probability must be in [0, 1].", self)
        _require(
            math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0,
            "noise_multiplier must be positive and finite: mixing alone is bounded randomness and "
            "gives no privacy (ModelMix, section 4.4).",
            self,
        )
        _require(
            math.isfinite(self.width_ratio) and self.width_ratio >= 0,
            "width_ratio must be finite and at least 0.",
            self,
        )
        _require(
            math.isfinite(self.coordinates) and self.coordinates >= 1,
            "coordinates must be finite and at least 1; 1 says nothing and is always right.",
            self,
        )

    @property
    def width_in_noise(self) -> float:
        """Accounted width of the uniform in units of the noise scale."""
        return min(self.width_ratio / self.noise_multiplier, WIDEST)

    @property
    def mixes(self) -> bool:
        """Whether the width is large enough to be accounted for."""
        return self.width_in_noise >= NARROWEST

    def narrowed(self, precision: float = 0.01) -> Self:
        """This event with its width rounded *down* to a geometric grid of ratio 1 + precision.

        A narrower uniform reveals more, so the account stays an upper bound. For schedules that
        change tau/eta at every step: it bounds the number of distinct events to be computed.
        """
        if not precision > 0:
            raise ConfigurationError(f"precision must be positive. Got {precision!r} instead.")
        if self.width_ratio == 0:
            return self
        base = math.log1p(precision)
        width = math.exp(base * math.floor(math.log(self.width_ratio) / base))
        return attr.evolve(self, width_ratio=min(width, self.width_ratio))


def _require(holds: bool, message: str, event: MixedDpEvent) -> None:
    if not holds:
        raise ConfigurationError(f"{message} Got {event!r} instead.")


def fields_to_json(event: MixedDpEvent) -> dict[str, Any]:
    """The four fields by name."""
    return attr.asdict(event)
