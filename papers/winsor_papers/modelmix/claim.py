"""What ModelMix claims: Theorem 4.1 and Corollary 4.1, as a `PublishedClaim`.

    epsilon = min_a  T D_a + log(1/delta)/(a - 1)

    p = 1:  D_a of (1-q) P0 + q P_c against P0
    p > 1:  D_a = log( sum_k C(a,k) (1-q)^(a-k) q^k A_k )/(a - 1),  A_k = E_P0[(P_v/P0)^k]^p,
            v = c/sqrt(p), a whole

P0 = N(0, s^2) * Uniform[-w/2, w/2], P_v its shift. The worst record is taken to be one-hot, or p
equal coordinates.

How the paper was read. The printed corollary has 1 - a for a - 1 and lacks the factor T. The
theorem asks for whole orders a, but with them p = 1 gives 83, 153 and 290 where figure 3 shows
31.7, 40.4 and 57.2: the figure used fractional orders, and so does this file (1.1, 1.2, ..., the
usual ones of Renyi accountants; finer steps would move the noise of section 4.3 by 0.1 %). "c = 20"
is divided by the expected batch of 1000: the figure's tau is in units of the averaged gradient.

The integrals are plain quadratures, good to about 1e-6 but not rounded to any side.
`winsor.contrib.modelmix.mixed_gaussian` is the certified account of the same step.

References
----------
Xiao, Xiang, Wang, Devadas: Differentially Private Deep Learning with ModelMix, 2022, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from winsor.contrib.modelmix.density import GAUSSIAN, Mixed
from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.core.events.mixed import NARROWEST
from winsor_papers.published import PublishedClaim

Array = NDArray[np.float64]

_FRACTIONAL_ORDERS = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 65)])
_WHOLE_ORDERS = np.arange(2, 129)
_DOUBTS = (
    "the worst record is assumed one-hot or equal on p coordinates; the convexity behind it is "
    "stated, not proven",
    "Theorem 4.1 is stated for whole orders, the paper's figures use fractional ones",
)


def _log_density(width: float) -> Callable[[Array], Array]:
    if width >= NARROWEST:
        return Mixed(GAUSSIAN, width).log_density
    return lambda x: -0.5 * x * x - 0.5 * math.log(2 * math.pi)


def _grid(width: float, shift: float, order: float) -> Array:
    """Points that resolve both laws and reach the peak of the order-th moment."""
    low, high = -width / 2 - 12, width / 2 + order * shift + 12
    return np.linspace(low, high, math.ceil((high - low) / 0.02) + 1)


def _integral(log_values: Array, x: Array) -> float:
    """log of the trapezoid rule, which converges geometrically for these smooth integrands."""
    return float(special.logsumexp(log_values)) + math.log(x[1] - x[0])


def _fractional_rdp(event: MixedGaussianDpEvent, order: float) -> float:
    """D_a((1-q) P0 + q P_c || P0) on the line."""
    q, shift = event.sampling_probability, 1 / event.noise_multiplier
    density = _log_density(event.width_in_noise)
    x = _grid(event.width_in_noise, shift, order)
    at_zero = density(x)
    mixture = np.logaddexp(math.log1p(-q) + at_zero, math.log(q) + density(x - shift))
    return _integral(order * mixture - (order - 1) * at_zero, x) / (order - 1)


def _whole_rdp(event: MixedGaussianDpEvent) -> Array:
    """D_a of Corollary 4.1 at the whole orders."""
    q, p = event.sampling_probability, event.coordinates
    shift = 1 / (event.noise_multiplier * math.sqrt(p))
    density = _log_density(event.width_in_noise)
    largest = int(_WHOLE_ORDERS[-1])
    x = _grid(event.width_in_noise, shift, largest)
    at_zero, at_shift = density(x), density(x - shift)
    k = np.arange(largest + 1)
    log_a = np.array([p * _integral(j * at_shift - (j - 1) * at_zero, x) for j in k])
    log_a[:2] = 0.0
    sums = [special.logsumexp(stats.binom.logpmf(k, a, q) + log_a) for a in _WHOLE_ORDERS]
    return np.array(sums) / (_WHOLE_ORDERS - 1)


Parts = Sequence[tuple[MixedGaussianDpEvent, int]]
"""Steps and how often each is taken; all with the same number of coordinates."""


def modelmix_claim(event: MixedGaussianDpEvent, steps: int, delta: float) -> PublishedClaim:
    """The paper's epsilon for ``steps`` steps of ``event`` with 0 < q < 1."""
    return composed_claim([(event, steps)], delta)


def composed_claim(parts: Parts, delta: float) -> PublishedClaim:
    """The same for steps whose width changes along the run."""
    if parts[0][0].coordinates == 1:
        orders, statement = _FRACTIONAL_ORDERS, "Theorem 4.1 with fractional orders"
        rdp = sum(
            count * np.array([_fractional_rdp(event, float(a)) for a in orders])
            for event, count in parts
        )
    else:
        orders, statement = _WHOLE_ORDERS, "Corollary 4.1 with the factor T"
        rdp = sum(count * _whole_rdp(event) for event, count in parts)
    epsilon = float(np.min(rdp + math.log(1 / delta) / (orders - 1)))
    return PublishedClaim(epsilon, delta, "ModelMix", statement, _DOUBTS)
