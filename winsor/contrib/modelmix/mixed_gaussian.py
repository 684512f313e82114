"""One step of ModelMix with Gaussian noise: the event, and its certified Renyi bound.

    released coordinate j  =  sum_i g_ij + N(0, s^2) + Uniform[-w/2, w/2],   w = tau / step size

in the units of the clipped gradient (Xiao et al. 2022, eq. 36). A record changes the sum by a
vector v with |v|_2 <= c and |v_j| <= c/sqrt(p).

Algorithm. With h_k(v) the log-moment of one coordinate (`winsor.contrib.modelmix.moments`),

    lam_k = sup_{0 < v <= c/sqrt(p)} h_k(v)/v^2,      log E[r^k] = sum_j h_k(v_j) <= c^2 lam_k

for *every* allocation v, and `winsor.core.events.sampled_moments` turns these moments into the
divergence of the Poisson-sampled step. lam_k is never above its value without mixing,
k(k-1)/(2 s^2). Widths too small to matter get the divergence of the plain step; orders beyond the
largest moment get inf, and the accountant falls back on the relaxation below.

Guarantee
---------
An upper bound on the RDP of the step under both relations, if: the batch is drawn by Poisson
sampling and normalised by its expected size; the gradient is taken at a released iterate; neither
the uniform nor the noisy gradient leaves the step; the uniforms are independent per coordinate, and
every realised gap between the two mixed iterates is at least tau. (A wider gap only helps: centred
uniforms of two widths have distribution functions that cross once whatever their offset, which
smoothing by a log-concave density preserves; so the wider law is more dispersed and, half-lines
being optimal tests, harder to tell from its shift. Blackwell's order survives products and joint
sampling.)

Without any of this the released value is still post-processing of the noisy gradient: the
relaxation ``PoissonSampled(q, Gaussian(s/c))`` holds under every relation.

Differences from the paper. Theorem 4.1 and Corollary 4.1 take v one-hot (or p equal coordinates) as
the worst case, by a convexity of h_k(sqrt x) that is stated without proof; lam_k does not need it.
The corollary's denominator is (a - 1), and it lacks the factor T.

References
----------
Xiao, Xiang, Wang, Devadas: Differentially Private Deep Learning with ModelMix, 2022, section 4.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Self

import attr
import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from winsor.contrib.modelmix import moments
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.mixed import MIXED_MOMENTS, MixedDpEvent
from winsor.core.events.registry import Orders, entry_of, register
from winsor.core.events.sampled_moments import ORDERS, sampled_rdp, under


@attr.s(frozen=True, auto_attribs=True)
class MixedGaussianDpEvent(MixedDpEvent):
    """One step of ModelMix over L2-clipped gradients with Gaussian noise; see `MixedDpEvent`.

    >>> MixedGaussianDpEvent(0.02, 0.3633, width_ratio=15.0, coordinates=25)
    MixedGaussianDpEvent(sampling_probability=0.02, noise_multiplier=0.3633, width_ratio=15.0, \
coordinates=25)
    """

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


def without_mixing(event: MixedGaussianDpEvent) -> DpEvent:
    """Return the event that releases the noisy gradient itself: at least as revealing."""
    return PoissonSampledDpEvent(
        event.sampling_probability, GaussianDpEvent(event.noise_multiplier)
    )


def log_moments(event: MixedGaussianDpEvent) -> Orders:
    """Return c^2 lam_k at the orders `ORDERS`: bounds log E[r^k] for every allocation.

    For events that mix.
    """
    bound = 1 / (event.noise_multiplier * math.sqrt(event.coordinates))
    rates = moments.rates(event.width_in_noise, bound)
    return rates / event.noise_multiplier**2


@lru_cache(maxsize=4096)
def _amplified(event: MixedGaussianDpEvent, orders: tuple[float, ...]) -> Orders:
    return sampled_rdp(ORDERS, log_moments(event), event.sampling_probability, np.array(orders))


def rdp(event: MixedGaussianDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """Return the certified Renyi divergence of one step: the plain one if nothing is mixed."""
    if event.sampling_probability == 0:
        return np.zeros_like(orders)
    if event.mixes:
        return under(relation, lambda a: _amplified(event, tuple(a.tolist())).copy(), orders)
    plain = without_mixing(event)
    price = entry_of(plain).rdp
    assert price is not None, "sampled Gaussians have a Renyi price"
    return price(plain, relation, orders)


register(
    MixedGaussianDpEvent,
    name="mixed_gaussian",
    to_json=attr.asdict,
    from_json=lambda data: MixedGaussianDpEvent(**data),
    rdp=rdp,
    relaxations=lambda event: (without_mixing(event),),
)
MIXED_MOMENTS.append(moments.laplace_log_moments)
