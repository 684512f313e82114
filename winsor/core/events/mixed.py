"""Steps of ModelMix: what its events have in common, and the certified bound for Laplace noise.

An event is four numbers, relative to the clipping bound c; the one of Gaussian noise is ModelMix's
own (`winsor.contrib.modelmix.mixed_gaussian`). With Laplace noise and L1 clipping,

    released coordinate j  =  sum_i g_ij + Laplace(b) + Uniform[-w/2, w/2],   w = tau / step size

A record changes the sum by v with |v|_1 <= c and |v_j| <= c/p.

Algorithm. h_k, the log-moment of one coordinate, is even, zero at 0 and convex in the shift
(`winsor.contrib.modelmix.moments`, fact 2, needs only a log-concave density). So for u = c/p

    h_k(v_j) <= |v_j|/u * h_k(u),        log E[r^k] = sum_j h_k(v_j) <= p h_k(c/p)

for *every* allocation: under an L1 budget p equal coordinates are the worst case, by proof, and no
supremum over shifts is needed. (ModelMix, Remark C.1, asserts the case p = 1.) h_k(u) itself is
bounded by a weighted sum over nodes, as in the Gaussian case; beyond the edges of the uniform the
likelihood ratio is exactly e^-u and e^u, so nothing is cut off.

Guarantee
---------
An upper bound on the RDP under both relations; conditions as in
`winsor.contrib.modelmix.mixed_gaussian`.

The relaxation ``PoissonSampled(q, Laplace(b/c))`` (one coordinate shifted by c) holds without any
of the mixing conditions: a Laplace vector with |v|_1 <= c is at most as revealing as that scalar.
Write H_u(e) for the hockey-stick divergence at e^e of Laplace laws u apart; for |e| <= u it is
1 - e^((e - u)/2). For shifts a and b on two coordinates, a <= b, integrating over the loss of the
first gives, for 0 <= e <= a + b and t = max(e - b, -a),

    H_(a,b)(e) = H_(a+b)(e) - e^((e - a - b)/2) (a/2 - (t + a)/4)  <=  H_(a+b)(e)

as t <= a; for e < 0 it follows from the reflection that swaps the two laws. By induction over
coordinates the scalar pair dominates in Blackwell's order, hence also after sampling and under
composition.

References
----------
Xiao, Xiang, Wang, Devadas: Differentially Private Deep Learning with ModelMix, 2022, Remark C.1 and
eq. 15.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import attr
import numpy as np
from dp_accounting.dp_event import DpEvent, LaplaceDpEvent, PoissonSampledDpEvent

from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedEvent
from winsor.core.events.registry import Orders, load_plugins, register
from winsor.core.events.sampled_moments import ORDERS, sampled_rdp, under

NARROWEST = 0.01
"""Width over noise scale below which mixing is ignored: it adds less than 1e-5 of the variance."""

WIDEST = 4096.0
"""Width over noise scale up to which widths are told apart: beyond, positions lose digits that the
error allowances of `winsor.contrib.modelmix.moments` count on. Rounding a width down is sound."""

MIXED_MOMENTS: list[Callable[[float, float], Orders]] = []
"""Bounds on the moments of Laplace noise widened by a uniform, at `ORDERS`, as a function of
(width in noise, shift in noise). `winsor.contrib.modelmix` puts its own here; without it, events
that mix are refused."""


@attr.s(frozen=True, auto_attribs=True)
class MixedDpEvent(DpEvent):
    """One Poisson-sampled step whose noise is widened by an independent uniform per coordinate.

    A run whose noise or mixing width changes over time has several such events.

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
        """Return whether the width is large enough to be accounted for."""
        return self.width_in_noise >= NARROWEST


def _require(holds: bool, message: str, event: MixedDpEvent) -> None:
    if not holds:
        raise ConfigurationError(f"{message} Got {event!r} instead.")


@attr.s(frozen=True, auto_attribs=True)
class MixedLaplaceDpEvent(MixedDpEvent):
    """One step of ModelMix over L1-clipped gradients with Laplace noise; see `MixedDpEvent`."""


def without_mixing(event: MixedLaplaceDpEvent) -> DpEvent:
    """The same step with the noisy gradient itself released, all of c on one coordinate."""
    return PoissonSampledDpEvent(event.sampling_probability, LaplaceDpEvent(event.noise_multiplier))


def plain_log_moments(orders: Orders, shift: float) -> Orders:
    """log E[r^k] of Laplace noise of scale 1 shifted by ``shift`` (Mironov 2017, Table II)."""
    k = orders
    return np.logaddexp(
        np.log(k / (2 * k - 1)) + (k - 1) * shift, np.log((k - 1) / (2 * k - 1)) - k * shift
    ) * (1 + 1e-12)


def log_moments(event: MixedLaplaceDpEvent) -> Orders:
    """Bounds on log E[r^k] at `ORDERS`, for every allocation of the L1 budget."""
    k, noise, p = ORDERS, event.noise_multiplier, event.coordinates
    bound = p * plain_log_moments(k, 1 / (noise * p))
    if event.mixes:
        if not MIXED_MOMENTS:
            load_plugins()
        if not MIXED_MOMENTS:
            raise UnsupportedEvent(
                "Laplace noise with mixing must be priced by the package that mixes. Got an event "
                f"of width {event.width_ratio!r} instead, and no such package is loaded. Import "
                "winsor.contrib.modelmix.mixed_gaussian."
            )
        mixed = MIXED_MOMENTS[0](event.width_in_noise, 1 / (noise * p))
        bound = np.minimum(bound, p * mixed)
    return bound


@lru_cache(maxsize=4096)
def _amplified(event: MixedLaplaceDpEvent, orders: tuple[float, ...]) -> Orders:
    at, q = np.array(orders), event.sampling_probability
    bound = sampled_rdp(ORDERS, log_moments(event), q, at)
    # No loss exceeds that of pure differential privacy, log(1 + q(e^(c/b) - 1)).
    absent = math.log1p(-q) if q < 1 else -math.inf
    pure = np.logaddexp(absent, math.log(q) + 1 / event.noise_multiplier)
    return np.minimum(bound, pure * (1 + 1e-12))


def rdp(event: MixedLaplaceDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """Certified Renyi divergence of one step."""
    if event.sampling_probability == 0:
        return np.zeros_like(orders)
    return under(relation, lambda a: _amplified(event, tuple(a.tolist())).copy(), orders)


register(
    MixedLaplaceDpEvent,
    name="mixed_laplace",
    to_json=attr.asdict,
    from_json=lambda data: MixedLaplaceDpEvent(**data),
    rdp=rdp,
    relaxations=lambda event: (without_mixing(event),),
)
