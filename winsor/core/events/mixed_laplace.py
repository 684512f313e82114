"""One step of ModelMix with Laplace noise and L1 clipping: the event, and its certified bound.

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

from winsor.core.contract import Neighbouring, UnsupportedEvent
from winsor.core.events.mixed import MixedDpEvent, fields_to_json
from winsor.core.events.registry import Json, Orders, load_plugins, register
from winsor.core.events.sampled_moments import ORDERS, sampled_rdp, under

MIXED_MOMENTS: list[Callable[[float, float], Orders]] = []
"""Bounds on the moments of Laplace noise widened by a uniform, at `ORDERS`, as a function of
(width in noise, shift in noise). `winsor.contrib.modelmix` puts its own here; without it, events
that mix are refused."""


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


def _from_json(data: Json) -> MixedLaplaceDpEvent:
    return MixedLaplaceDpEvent(**data)


register(
    MixedLaplaceDpEvent,
    name="mixed_laplace",
    to_json=fields_to_json,
    from_json=_from_json,
    rdp=rdp,
    relaxations=lambda event: (without_mixing(event),),
)
