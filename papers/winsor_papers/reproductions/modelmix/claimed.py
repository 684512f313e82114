"""The noise that ModelMix's own account asks for: what published lines are trained with."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize

from winsor_papers.modelmix.claim import Parts, composed_claim

LEAST_NOISE = 0.05


def claimed_noise(parts: Callable[[float], Parts], epsilon: float, delta: float) -> float:
    """The noise multiplier at which the paper's account of ``parts(noise)`` gives ``epsilon``.

    Good to one per cent. If the account is content with hardly any noise, `LEAST_NOISE`: the less
    noise, the longer the quadratures.
    """

    def gap(log_noise: float) -> float:
        claim = composed_claim(parts(math.exp(log_noise)), delta)
        return claim.published_epsilon - epsilon

    low = high = 0.0
    while gap(high) > 0:
        low, high = high, high + math.log(2)
    while low == high or gap(low) < 0:
        if low <= math.log(LEAST_NOISE):
            return LEAST_NOISE
        low, high = max(low - math.log(2), math.log(LEAST_NOISE)), low
    return math.exp(float(optimize.brentq(gap, low, high, xtol=0.01)))
