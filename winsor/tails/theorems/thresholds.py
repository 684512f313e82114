"""Thresholds above the noise of gradients: papers 3 (nothing is clipped) and 5 (ModelMix).

For ModelMix also the steps T, the step size eta, and the mixing width tau against eta.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from winsor.core.checks import all_positive, all_probabilities

MIXING_RATIOS = (0.05, 0.1, 0.15, 0.3)
"""tau/eta in the paper's experiments: 0.05 and 0.1 in Figure 2, up to 0.3 in Figure 3."""


class ClippedSchedule(NamedTuple):
    """Steps T and step size eta (for the update eta/(nq) times the noisy sum)."""

    steps: float
    step_size: float


def _relative_noise(n: float, epsilon: float, d: float, delta: float) -> float:
    """sqrt(d log(1/delta)) / (n epsilon), the unit in which the bounds of paper 5 are written."""
    all_positive(n=n, epsilon=epsilon, d=d)
    all_probabilities(delta=delta)
    return math.sqrt(d * math.log(1 / delta)) / (n * epsilon)


def sampling_noise_threshold(
    kappa: float,
    *,
    n: float,
    epsilon: float,
    d: float,
    delta: float,
    risk_range: float = 1.0,
    smoothness: float = 1.0,
) -> float:
    """Return the smallest c that clears the sampling noise P(|g_i - grad F| >= t) <= e^(-t/kappa).

    Theorem 3.2 states (12): c >= max(4 kappa log 10, -psi kappa log(kappa) log(sqrt(d log(1/delta))
    / (n epsilon))) with an unnamed psi, and a log(kappa) that changes sign with the unit of
    measurement. The proof (end of Appendix B) has the condition itself, which is solved here:

        c >= 4 kappa log 10   and
        c/(2 kappa) - log((c/4 + kappa)^2 / c)
            >= 0.4 - log(sqrt(R_F beta d log(1/delta)) / (n epsilon)).

    The left side grows with c. ``risk_range`` is R_F = sup F - inf F, ``smoothness`` beta. (The
    text under Assumption 2.1 says that a larger kappa concentrates more; with exp(-t/kappa) it is
    the reverse.)
    """
    all_positive(kappa=kappa, risk_range=risk_range, smoothness=smoothness)
    noise = _relative_noise(n, epsilon, d, delta) * math.sqrt(risk_range * smoothness)
    target = 0.4 - math.log(noise)

    def left(c: float) -> float:
        return c / (2 * kappa) - 2 * math.log(c / 4 + kappa) + math.log(c)

    low = 4 * kappa * math.log(10)
    if left(low) >= target:
        return low
    high = 2 * low
    while left(high) < target:
        high *= 2
    for _ in range(200):  # bisection to the last bit; `left` is increasing
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) < target else (low, middle)
    return high


def clipped_sgd_schedule(
    threshold: float,
    *,
    n: float,
    epsilon: float,
    d: float,
    delta: float,
    sampling_rate: float,
    risk_range: float = 1.0,
    smoothness: float = 1.0,
    mixing: bool = True,
) -> ClippedSchedule:
    """Return T and eta for a threshold c.

    T = (n epsilon)^2 / (d log(1/delta)),
    eta = q sqrt(R_F d log(1/delta)) / (n epsilon c sqrt(beta)).
    From the proof of Theorem B.1 (after (29)). With ModelMix the smoothness is replaced by
    101/12 beta (proof of Theorem 3.2, after (34)).
    """
    all_positive(c=threshold, risk_range=risk_range, smoothness=smoothness, q=sampling_rate)
    unit = _relative_noise(n, epsilon, d, delta)
    curvature = smoothness * (101 / 12 if mixing else 1.0)
    step_size = unit * math.sqrt(risk_range / curvature) * sampling_rate / threshold
    return ClippedSchedule(max(1.0, unit**-2), step_size)


def mixing_width(
    *,
    n: float,
    epsilon: float,
    d: float,
    delta: float,
    sampling_rate: float,
    risk_range: float = 1.0,
    smoothness: float = 1.0,
) -> float:
    """Return the tau at which mixing costs as much as the noise: (13)'s last term is its first.

    With v = 0 (its smallest value, so tau errs on the small side) and T of `clipped_sgd_schedule`:
    T d tau^2 / 12 = (5/2) R_F q / (beta sqrt(d log(1/delta))). A larger tau amplifies more and
    slows the optimisation; (13) is O(c sqrt(d log(1/delta))/(n epsilon)) when tau = O(eta).
    """
    all_positive(risk_range=risk_range, smoothness=smoothness, q=sampling_rate)
    unit = _relative_noise(n, epsilon, d, delta)
    room = 2.5 * risk_range * sampling_rate / (smoothness * math.sqrt(d * math.log(1 / delta)))
    return math.sqrt(12 * room * unit**2 / d)


def no_clipping_threshold(
    *,
    smoothness: float,
    gap: float,
    noise: float,
    n: float,
    steps: float,
    failure: float,
    c1: float = 1.0,
    c2: float = 1.0,
) -> float:
    """Return the C of eq. (2): with probability 1 - 2 delta' no gradient is clipped.

    C = sqrt(4L(f(w0) - f*) + 2 c1 L^2 log(2/delta') + 64 c2 L^2 log(2T/delta'))
        + rho sqrt(1 + log(n(T+1)/delta'))

    which has the shape sqrt(c3 + c4 log(nT/delta')) of (2). The first line is (9); (11) repeats it
    as 16 c2 L, without the square, which has the wrong unit. The second line is the union bound
    behind (10), with its constant: P(|grad f_i - grad f| > t) <= e exp(-t^2/rho^2) under
    Assumption 4.1 ((10) prints sqrt(rho log), again a unit slip). c1 and c2 are the absolute
    constants of Proposition 4.2, which the paper does not name. (2) asks delta' in (0.5, 1): read
    (0, 0.5).
    """
    all_positive(smoothness=smoothness, gap=gap, noise=noise, n=n, T=steps, c1=c1, c2=c2)
    all_probabilities(delta=failure)
    mean = (
        4 * smoothness * gap
        + 2 * c1 * smoothness**2 * math.log(2 / failure)
        + 64 * c2 * smoothness**2 * math.log(2 * steps / failure)
    )
    return math.sqrt(mean) + noise * math.sqrt(1 + math.log(n * (steps + 1) / failure))
