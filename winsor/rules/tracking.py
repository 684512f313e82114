"""A private running quantile: count, noise, move the threshold.

Each row votes b_i = 1[x_i <= threshold]; the centred count sum_i (b_i - 1/2) is one more part of
the step's joint release; the next threshold is

    threshold * exp(-rate * (fraction - target)),   fraction = released count / expected size + 1/2

kept within [floor, ceiling]. Andrew et al. 2021.

Guarantee
---------
A vote minus one half is at most 1/2 in absolute value: one record moves the count by 1/2 when added
or removed, by 1 when replaced. The next threshold is a function of the released count and public
constants, hence free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from winsor.core.checks import positive, probability
from winsor.core.contract import Bounded, ConfigurationError, Sensitivity

THRESHOLDS = "the rule's adaptive thresholds"
"""What a tracked threshold is called in a privacy statement (`Rule.releases_state`)."""


@dataclass(frozen=True)
class QuantileTracker:
    """Follow the ``target`` quantile of a per-row quantity, geometrically.

    ``share`` is the part of each step's privacy that the count costs; the gradient gets the rest,
    so its noise grows by 1/sqrt(1 - share). ``floor`` keeps the threshold (and with it the noise,
    which scales with it) from collapsing; ``ceiling`` keeps it finite.
    """

    target: float = 0.5
    rate: float = 0.2
    share: float = 0.01
    floor: float = 1e-3
    ceiling: float = 1e6

    def __post_init__(self) -> None:
        for name in ("target", "share"):
            probability(name, getattr(self, name))
        for name in ("rate", "floor", "ceiling"):
            positive(name, getattr(self, name))
        if self.ceiling < self.floor:
            raise ConfigurationError(
                f"ceiling must be at least floor = {self.floor}. Got {self.ceiling!r} instead."
            )

    def start(self, threshold: float) -> float:
        """Check an initial threshold."""
        positive("threshold", threshold)
        if not self.floor <= threshold <= self.ceiling:
            raise ConfigurationError(
                f"threshold must start within [{self.floor}, {self.ceiling}]. Got {threshold!r} "
                "instead. Move it, or widen floor and ceiling."
            )
        return float(threshold)

    def count(self, values: Tensor, threshold: float) -> Tensor:
        """sum_i (1[x_i <= threshold] - 1/2): a 0-dim tensor, additive over fragments."""
        return ((values <= threshold).to(values.dtype) - 0.5).sum()

    def part(self, count: Tensor) -> Bounded:
        sensitivity = Sensitivity(0.5, 1.0, "a vote minus 1/2 is +-1/2 (Andrew et al. 2021)")
        return Bounded(count, sensitivity, share=self.share)

    def following(self, threshold: float, released: Tensor, expected_size: float) -> float:
        """The next threshold, from released and public numbers only."""
        fraction = float(released) / expected_size + 0.5
        log_next = math.log(threshold) - self.rate * (fraction - self.target)
        return math.exp(min(max(log_next, math.log(self.floor)), math.log(self.ceiling)))
