"""Paper 5 (ModelMix): utility with mixing and clipping, Example 3.1 and the straw man (7)-(8).

``noise_moment`` is E|Delta|^2, the mean squared length of the noise added to the sum of gradients;
``squared_widths`` is the sum of the squared mixing thresholds tau_k^2 over all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.checks import all_positive, all_probabilities, at_least
from winsor.core.contract import ConfigurationError
from winsor.tails.theorems.thresholds import (
    sampling_noise_threshold,
)
from winsor_papers.theory.bound import Bound, Condition, stated

Array = NDArray[np.float64]

_SMOOTH = "beta-smooth loss"


def modelmix_convex_risk(
    *,
    steps: float,
    n: float,
    d: float,
    sampling_rate: float,
    lipschitz: float,
    smoothness: float,
    distance: float,
    step_constant: float,
    noise_moment: float,
    squared_widths: float = 0.0,
) -> Bound:
    """Excess risk of the averaged states for convex Lipschitz losses, with constants (Theorem 3.1).

    (3 W^2 + d s/12)/(2 g sqrt T) + g (L^2/q^2 + V/(nq)^2)/sqrt T
      + beta (12 W^2/(8T) + 2 g W (L + E|Delta|/n)/(q T^1.5) + 11 g^2 (L^2 + V/n^2)/(8 T q^2))

    with s = ``squared_widths`` = sum of tau_k^2, V = ``noise_moment``, E|Delta| <= sqrt(V),
    W = ``distance`` and g = ``step_constant``: eta = g/(n q sqrt T). It is for the mean of
    (w_{k-1} + w_{k-2})/2, k = 1 .. T.

    >>> found = modelmix_convex_risk(steps=1e4, n=1e4, d=10, sampling_rate=0.1, lipschitz=1,
    ...                              smoothness=1, distance=1, step_constant=0.1, noise_moment=100)
    >>> round(found.value, 3)
    0.25
    """
    all_positive(n=n, d=d, q=sampling_rate, L=lipschitz, smoothness=smoothness)
    all_positive(distance=distance, step_constant=step_constant)
    at_least("T", steps, 1)
    at_least("noise_moment", noise_moment, 0)
    at_least("squared_widths", squared_widths, 0)
    root, g, q, w = math.sqrt(steps), step_constant, sampling_rate, distance
    mean_noise = math.sqrt(noise_moment)
    energy = lipschitz**2 + noise_moment / n**2
    return stated(
        "paper 5, Theorem 3.1",
        "(3 W^2 + d s/12)/(2 g sqrt T) + g (L^2/q^2 + V/(nq)^2)/sqrt T + beta (...)",
        {
            "start": 3 * w**2 / (2 * g * root),
            "mixing": d * squared_widths / 12 / (2 * g * root),
            "gradients": g * energy / q**2 / root,
            "curvature": smoothness
            * (
                12 * w**2 / (8 * steps)
                + 2 * g * w * (lipschitz + mean_noise / n) / (q * steps**1.5)
                + 11 * g**2 * energy / (8 * steps * q**2)
            ),
        },
        assumed=("convex, L-Lipschitz, beta-smooth losses, c = L", "W = sup |w - w*| is finite"),
        conditions=[
            (sampling_rate <= 1, "q <= 1", f"q = {sampling_rate:g} is not a sampling rate"),
        ],
    )


def _clears_noise(threshold: float, needed: float | None) -> list[Condition]:
    if needed is None:
        return []
    return [
        (
            threshold >= needed,
            "c clears the sampling noise (12)",
            f"c = {threshold:g} is below {needed:.4g}, where (12) starts: clipped SGD may not "
            "converge at all (Example 3.1)",
        )
    ]


def clipped_dpsgd_rate(
    threshold: float,
    *,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    risk_range: float = 1.0,
    smoothness: float = 1.0,
    noise_constant: float = 1.0,
    kappa: float | None = None,
) -> Bound:
    """DP-SGD with clipping at c: (v/2 + 5/2) c sqrt(R_F beta d log(1/delta))/(n epsilon).

    Without mixing; it bounds the mean of min((9/20)|grad F|^2, (c/20)|grad F|) (Theorem B.1, (23)).
    v = ``noise_constant`` is not named. With ``kappa`` the condition on c is checked.

    >>> found = clipped_dpsgd_rate(5.0, n=1e5, d=100, epsilon=2, delta=1e-5, kappa=1.0)
    >>> round(found.value, 4), len(found.warnings)
    (0.0025, 1)
    """
    all_positive(c=threshold, n=n, d=d, epsilon=epsilon, risk_range=risk_range)
    all_positive(smoothness=smoothness, v=noise_constant)
    all_probabilities(delta=delta)
    needed = (
        None
        if kappa is None
        else sampling_noise_threshold(
            kappa,
            n=n,
            epsilon=epsilon,
            d=d,
            delta=delta,
            risk_range=risk_range,
            smoothness=smoothness,
        )
    )
    root = math.sqrt(risk_range * smoothness * d * math.log(1 / delta))
    return stated(
        "paper 5, Theorem B.1, (23), v as given",
        "(v/2 + 5/2) c sqrt(R_F beta d log(1/delta))/(n epsilon)",
        {"noise": (noise_constant / 2 + 2.5) * threshold * root / (n * epsilon)},
        assumed=(_SMOOTH, "sub-exponential sampling noise (Assumption 2.1)"),
        conditions=_clears_noise(threshold, needed),
    )


def modelmix_rate(
    threshold: float,
    *,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    squared_widths: float = 0.0,
    start_gap: float = 0.0,
    risk_range: float = 1.0,
    smoothness: float = 1.0,
    noise_constant: float = 1.0,
    kappa: float | None = None,
) -> Bound:
    """DP-SGD with ModelMix and clipping at c, with constants (Theorem 3.2, (13)).

    (v/2 + 5/2) c sqrt(R_F (101/12) beta d l)/(n eps) + 28 c beta d l W/(12 q (n eps)^2)
      + c d l sqrt(101/12) beta^1.5/(q n eps sqrt(R_F)) (d s/12 + 21 W^2/24)

    with l = log(1/delta), s = ``squared_widths`` and W = ``start_gap`` = |w_0 - w_-1|. The same
    left side as `clipped_dpsgd_rate`.

    >>> setting = dict(n=1e5, d=100, epsilon=2, delta=1e-5)
    >>> plain = clipped_dpsgd_rate(30.0, **setting, smoothness=101 / 12)
    >>> mixed = modelmix_rate(30.0, **setting, sampling_rate=0.02)
    >>> round(mixed.value / plain.value, 6)
    1.0
    """
    at_least("squared_widths", squared_widths, 0)
    at_least("start_gap", start_gap, 0)
    plain = clipped_dpsgd_rate(
        threshold,
        n=n,
        d=d,
        epsilon=epsilon,
        delta=delta,
        risk_range=risk_range,
        smoothness=101 / 12 * smoothness,
        noise_constant=noise_constant,
    )
    all_positive(q=sampling_rate)
    needed = (
        None
        if kappa is None
        else sampling_noise_threshold(
            kappa,
            n=n,
            epsilon=epsilon,
            d=d,
            delta=delta,
            risk_range=risk_range,
            smoothness=smoothness,
        )
    )
    log, size = math.log(1 / delta), n * epsilon
    factor = threshold * d * log * math.sqrt(101 / 12) * smoothness**1.5
    factor /= sampling_rate * size * math.sqrt(risk_range)
    return stated(
        "paper 5, Theorem 3.2, (13), v as given",
        "(v/2 + 5/2) c sqrt(R_F (101/12) beta d l)/(n eps) + 28 c beta d l W/(12 q (n eps)^2) "
        "+ c d l sqrt(101/12) beta^1.5/(q n eps sqrt(R_F)) (d s/12 + 21 W^2/24)",
        {
            "noise": plain.terms["noise"],
            "start": 28
            * threshold
            * smoothness
            * d
            * log
            * start_gap
            / (12 * sampling_rate * size**2)
            + factor * 21 * start_gap**2 / 24,
            "mixing": factor * d * squared_widths / 12,
        },
        assumed=(_SMOOTH, "sub-exponential sampling noise (Assumption 2.1)"),
        conditions=_clears_noise(threshold, needed),
    )


# ------------------------------------------------------------------------------------- example 3.1


class ClippedExample(NamedTuple):
    """The gradient of the mean loss, the mean of clipped gradients, and their deviation."""

    gradient: float
    clipped: float
    deviation: float


EXAMPLE_POINTS = (-20.0, -10.0, 90.0)


def clipping_example(
    weight: float, threshold: float = 1.0, points: Sequence[float] = EXAMPLE_POINTS
) -> ClippedExample:
    """Mean estimation by clipped gradients of (w - x)^2/2 over three points (Example 3.1).

    At the optimum w = 20 the clipped gradients average 1/3 instead of 0; at w = 0 they average 1/3
    where the gradient is -20: the step goes the wrong way. The clipped fixed point is the median.

    >>> at_start = clipping_example(0.0)
    >>> at_start.gradient, round(at_start.clipped, 4), round(at_start.deviation, 1)
    (-20.0, 0.3333, 49.7)
    """
    all_positive(c=threshold)
    if not points:
        raise ConfigurationError("points must hold at least one number. Got none.")
    gradients = np.array([weight - x for x in points])
    clipped = np.clip(gradients, -threshold, threshold)
    return ClippedExample(float(gradients.mean()), float(clipped.mean()), float(gradients.std()))


# ------------------------------------------------------------------------------- straw man (7), (8)


def straw_man_round(
    first: ArrayLike,
    second: ArrayLike,
    gradient: Callable[[Array], Array],
    *,
    step_size: float,
    shares: tuple[ArrayLike, ArrayLike],
    noises: tuple[ArrayLike, ArrayLike],
) -> tuple[Array, Array]:
    """One round of the two models that train in turns (7), (8), with the draws given.

    w1 <- a o w1 + (1 - a) o w2 - eta (grad F(w1) + D)        odd iteration
    w2 <- b o w1' + (1 - b) o w2 - eta (grad F(w2) + D')      even iteration, w1' the new w1

    ``shares`` are (a, b), uniform on (0, 1) for every coordinate; ``noises`` are (D, D'). ModelMix
    replaces the two models by the last two states of one. Nothing here is private by itself.

    >>> one, two = straw_man_round([1.0], [3.0], lambda w: w, step_size=0.5,
    ...                            shares=([0.5], [1.0]), noises=([0.0], [0.0]))
    >>> one.tolist(), two.tolist()
    ([1.5], [0.0])
    """
    all_positive(eta=step_size)
    old_first, old_second = np.asarray(first, float), np.asarray(second, float)
    a, b = (np.asarray(share, float) for share in shares)
    if np.any((a < 0) | (a > 1)) or np.any((b < 0) | (b > 1)):
        raise ConfigurationError("shares must lie in [0, 1]. Got values outside instead.")
    noise_one, noise_two = (np.asarray(noise, float) for noise in noises)
    new_first = a * old_first + (1 - a) * old_second
    new_first = new_first - step_size * (gradient(old_first) + noise_one)
    new_second = b * new_first + (1 - b) * old_second
    new_second = new_second - step_size * (gradient(old_second) + noise_two)
    return new_first, new_second
